"""Every key of a configuration is written, refused by name, or ignored for a stated reason.

The keys are those that the installed transformers knows: a key that a new version adds fails here
until a person has decided about it.
"""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kinfolk.convert.checkpoint import Config
from kinfolk.convert.config_keys import WITHOUT_EFFECT
from kinfolk.convert.find import find_conversion
from kinfolk.errors import ConversionError
from kinfolk_gemma4.family import Gemma4
from kinfolk_laguna.family import Laguna
from kinfolk_qwen35.family import Qwen35
from kinfolk_qwen35moe.family import Qwen35Moe

FULL, LOCAL, LINEAR = "full_attention", "sliding_attention", "linear_attention"
HEAD = "lm_head.weight"
SMALL = {
    "vocab_size": 320,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 96,
    "max_position_embeddings": 1024,
}
HYBRID = SMALL | {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
PLAIN = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}
YARN = PLAIN | {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 256,
    "beta_fast": 16.0,
    "beta_slow": 2.0,
    "truncate": True,
}
FACTOR = YARN | {"attention_factor": 1.5, "mscale": 0.7, "mscale_all_dim": 0.9}
SCALES = YARN | {"mscale": 0.7, "mscale_all_dim": 0.9}
MIXED = {
    "num_hidden_layers": 4,
    "layer_types": [FULL, LOCAL, LOCAL, LOCAL],
    "num_attention_heads_per_layer": [4, 8, 8, 8],
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
}
UNIFIED = SMALL | {"num_hidden_layers": 6, "layer_types": [LOCAL, FULL, LOCAL, LOCAL, LOCAL, FULL]}
GEMMA = UNIFIED | {"vocab_size_per_layer_input": 320}
ROPES = {
    LOCAL: {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
    FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
}
GEMMA_EXPERTS = {
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
}


@dataclass(frozen=True)
class Case:
    """A configuration of transformers, and where its embeddings are described."""

    family: Any
    config: str
    options: dict[str, Any]
    ropes: tuple[str, ...] = ("rope_parameters",)

    def values(self) -> dict[str, Any]:
        import transformers

        found = getattr(transformers, self.config)(**deepcopy(self.options)).to_dict()
        return json.loads(json.dumps(found))


def nested(*kinds):
    return tuple(f"rope_parameters.{kind}" for kind in kinds)


CASES = {
    "qwen35": Case(Qwen35(), "Qwen3_5TextConfig", HYBRID | {"rope_parameters": PLAIN}),
    "qwen35, YaRN": Case(Qwen35(), "Qwen3_5TextConfig", HYBRID | {"rope_parameters": YARN}),
    "qwen35, YaRN with a factor": Case(
        Qwen35(), "Qwen3_5TextConfig", HYBRID | {"rope_parameters": FACTOR}
    ),
    "qwen35, YaRN with two scales": Case(
        Qwen35(), "Qwen3_5TextConfig", HYBRID | {"rope_parameters": SCALES}
    ),
    "qwen35, multimodal": Case(
        Qwen35(),
        "Qwen3_5Config",
        {"text_config": HYBRID | {"rope_parameters": PLAIN}},
        ("text_config.rope_parameters",),
    ),
    "qwen35moe": Case(
        Qwen35Moe(), "Qwen3_5MoeTextConfig", HYBRID | EXPERTS | {"rope_parameters": YARN}
    ),
    "qwen35moe, multimodal": Case(
        Qwen35Moe(),
        "Qwen3_5MoeConfig",
        {"text_config": HYBRID | EXPERTS | {"rope_parameters": PLAIN}},
        ("text_config.rope_parameters",),
    ),
    "laguna": Case(
        Laguna(),
        "LagunaConfig",
        SMALL | EXPERTS | MIXED | {"rope_parameters": {FULL: YARN, LOCAL: PLAIN}},
        nested(FULL, LOCAL),
    ),
    "laguna, no windows": Case(
        Laguna(),
        "LagunaConfig",
        SMALL | EXPERTS | {"num_hidden_layers": 2, "rope_parameters": {FULL: SCALES, LOCAL: PLAIN}},
        nested(FULL),
    ),
    "gemma4": Case(
        Gemma4(), "Gemma4TextConfig", GEMMA | {"rope_parameters": ROPES}, nested(FULL, LOCAL)
    ),
    "gemma4 with experts": Case(
        Gemma4(),
        "Gemma4TextConfig",
        GEMMA | GEMMA_EXPERTS | {"hidden_size_per_layer_input": 0},
        nested(FULL, LOCAL),
    ),
    "gemma4, unified": Case(Gemma4(), "Gemma4UnifiedTextConfig", UNIFIED, nested(FULL, LOCAL)),
    "gemma4, multimodal": Case(Gemma4(), "Gemma4Config", {"text_config": GEMMA}, ()),
    "gemma4, unified, multimodal": Case(
        Gemma4(), "Gemma4UnifiedConfig", {"text_config": UNIFIED}, ()
    ),
}

HYBRID_EXTRA = {
    "attn_output_gate": True,
    "output_gate_type": "swish",
    "full_attention_interval": 4,
    "mamba_ssm_dtype": "float32",
    "mlp_only_layers": [],
    "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": False,
    "partial_rotary_factor": 0.5,
}
SAMPLING = {"do_sample": True, "temperature": 1.0, "top_k": 20, "top_p": 0.95}
PUBLISHED = {
    "qwen35, multimodal": {
        "": {"language_model_only": False, "generation_config": SAMPLING, **SAMPLING},
        "text_config": HYBRID_EXTRA,
        "text_config.rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10]},
    },
    "qwen35moe, multimodal": {
        "text_config": {
            **HYBRID_EXTRA,
            "decoder_sparse_step": 1,
            "norm_topk_prob": True,
        },
    },
    "laguna": {
        "": {
            "auto_map": {"AutoConfig": "configuration_laguna.LagunaConfig"},
            "torch_dtype": "bfloat16",
            "decoder_sparse_step": 1,
            "gating_types": ["per-head"] * 4,
            "mlp_only_layers": [0],
            "moe_router_use_sigmoid": True,
            "norm_topk_prob": True,
            "partial_rotary_factor": 0.5,
            "qkv_bias": False,
            "rope_style": "rotate-half",
            "swa_attention_sink_enabled": False,
        },
    },
    "gemma4, multimodal": {
        "": {"eoa_token_id": 310, "vision_soft_tokens_per_image": 280, "dtype": "bfloat16"},
        "text_config": {"global_head_dim": 512, "num_global_key_value_heads": None},
    },
}
"""Keys of published configurations that the classes of transformers do not have."""

OTHERS = {
    "architectures": ["Another"],
    "dtype": "float16",
    "problem_type": "regression",
    "eos_token_id": 7,
    "bos_token_id": 7,
    "pad_token_id": 7,
    "final_logit_softcapping": 30.0,
    "use_bidirectional_attention": "all",
    "num_experts": 9,
    "top_k_experts": 3,
    "moe_intermediate_size": 48,
    "vision_config": {"hidden_size": 3},
    "audio_config": {"hidden_size": 3},
    # Of the embeddings, where a configuration does not state them.
    "rope_theta": 3e5,
    "rope_type": "linear",
    "type": "linear",
    "partial_rotary_factor": 0.75,
    "factor": 3.0,
    "original_max_position_embeddings": 128,
    "attention_factor": 1.25,
    "beta_fast": 24.0,
    "beta_slow": 1.5,
    "mscale": 0.6,
    "mscale_all_dim": 0.8,
    "truncate": False,
    "short_factor": [1.0],
    "long_factor": [1.0],
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "mrope_section": [3, 3, 2],
    "mrope_interleaved": False,
}
"""Values for keys that usually have none, or whose value alone allows no other."""


NAMED_BY = {"enable_moe_block": "num_experts"}
"""Keys whose other value asks for a key that is not there: that one is named."""


def another(key, value):
    """A value unlike the present one."""
    if value is None or key in OTHERS:
        assert key in OTHERS, f"nobody has looked at {key!r}: state a value for it"
        assert OTHERS[key] != value
        return OTHERS[key]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return 2 * value or 1
    if isinstance(value, str):
        return "another"
    if isinstance(value, list):
        return value[::-1] if value[::-1] != value else value[1:]
    return {"0": "another"} if key == "id2label" else {"another": 0}


def paths_of(values, prefix=""):
    """Full names of all keys, also of those in objects that a conversion looks into."""
    for key, value in values.items():
        opened = key in ("text_config", "rope_parameters", "per_layer_config", FULL, LOCAL)
        if isinstance(value, dict) and (opened or key.isdigit()):
            yield from paths_of(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def paths_to_walk(case, values):
    """All keys but the one that chooses the family."""
    from transformers.modeling_rope_utils import RopeParameters

    found = dict.fromkeys(path for path in paths_of(values) if path != "model_type")
    for rope in case.ropes:
        keys = (*RopeParameters.__annotations__, "type", "mrope_interleaved")
        found |= dict.fromkeys(f"{rope}.{key}" for key in keys)
    return list(found)


def changed(values, path):
    """The configuration with another value under one key."""
    values = deepcopy(values)
    *sections, key = path.split(".")
    section = values
    for name in sections:
        section = section[name]
    section[key] = another(key, section.get(key))
    return values


@pytest.fixture
def convert(tmp_path):
    """``convert(family, values, head=)``: the metadata of the file, and the ignored keys.

    ``head``: the checkpoint has an output matrix.
    """

    def run(family, values, *, head=True):
        config = Config(json.loads(json.dumps(values)), tmp_path / "config.json")
        checkpoint = SimpleNamespace(config=config, tensors={HEAD: None} if head else {})
        _, conversion = find_conversion(checkpoint, [family])
        recipes = [
            (r.name, r.shape, r.sources, None if r.sources else r.transform.apply().tolist())
            for r in conversion.tensors
        ]
        keys = {
            key: value.tolist() if hasattr(value, "tolist") else value
            for key, value in conversion.metadata.items()
        }
        found = (recipes, keys, conversion.vocabulary, conversion.group, conversion.repeated)
        return found, checkpoint.config.ignored()

    return run


@pytest.mark.parametrize("name", CASES)
def test_somebody_has_looked_at_every_key(name, convert):
    case = CASES[name]
    values = case.values()
    before = {head: convert(case.family, values, head=head)[0] for head in (False, True)}

    def fate(path, head):
        try:
            found, ignored = convert(case.family, changed(values, path), head=head)
        except ConversionError as error:
            key = path.rsplit(".")[-1]
            named = f"{NAMED_BY.get(key, key)}'" in str(error)
            return "refused" if named else f"refused, but not by name: {error}"
        if any(path == other or path.startswith(f"{other}.") for other in ignored):
            return "ignored" if found == before[head] else "ignored, but it changes the file"
        return "written" if found != before[head] else "passed over"

    paths = paths_to_walk(case, values)
    fates = {path: {fate(path, head) for head in (False, True)} for path in paths}
    # A key may have no effect with an output matrix, or without one.
    honest = {"written", "refused", "ignored"}
    wrong = {
        path: found
        for path, found in fates.items()
        if not found & honest or found - honest - {"passed over"}
    }
    assert wrong == {}
    assert len(paths) > 40


PROVED_ELSEWHERE = {
    "architectures": "classes are chosen by whoever loads the model",
    "dtype": "weights have the precision they are stored in",
    "return_dict": "whether a call returns an object or a tuple, which parts of models rely on",
    "transformers_version": "written by transformers, never read",
}


@pytest.mark.parametrize("name", ["qwen35, YaRN", "qwen35, YaRN with a factor", "qwen35moe",
                                  "laguna", "gemma4"])  # fmt: skip
def test_ignored_keys_change_no_logits_of_transformers(name, convert):
    import transformers

    case = CASES[name]
    values = case.values()
    paths = paths_to_walk(case, values)
    ignored = {
        path: changed(values, path)
        for path in paths
        if path.rsplit(".")[-1] not in PROVED_ELSEWHERE and is_ignored(convert, case, values, path)
    }
    assert len(ignored) > 10
    kind = getattr(transformers, case.config)
    model = transformers.AutoModelForCausalLM.from_config
    torch.manual_seed(0)
    usual = model(kind(**deepcopy(values))).eval()
    tokens = torch.arange(24)[None]
    with torch.inference_mode():
        expected = usual(tokens).logits
        for path, other in ignored.items():
            again = model(kind(**deepcopy(other))).eval()
            again.load_state_dict(usual.state_dict())
            assert torch.equal(again(tokens).logits, expected), path


def is_ignored(convert, case, values, path):
    try:
        return path in convert(case.family, changed(values, path))[1]
    except ConversionError:
        return False


def test_how_answers_are_chosen_is_no_part_of_a_model():
    from transformers import GenerationConfig

    assert set(GenerationConfig._get_default_generation_params()) <= set(WITHOUT_EFFECT)


@pytest.mark.parametrize("name", PUBLISHED)
def test_configurations_as_published_are_the_same_model(name, convert):
    case = CASES[name]
    values = case.values()
    before, _ = convert(case.family, values)
    for path, extra in PUBLISHED[name].items():
        section = values
        for part in path.split(".") if path else ():
            section = section[part]
        assert not set(extra) & {key for key, value in section.items() if value is not None}
        section.update(extra)
    assert convert(case.family, values)[0] == before


def test_what_one_family_reads_is_not_read_for_another(tmp_path):
    class Nosy(Laguna):
        def convert(self, checkpoint):
            checkpoint.config.number("learning_rate")

    values = CASES["qwen35"].values() | {"learning_rate": 0.5}
    config = Config(values, tmp_path / "config.json")
    checkpoint = SimpleNamespace(config=config, tensors={})
    for families in ([Nosy(), Qwen35()], [Qwen35(), Nosy()]):
        with pytest.raises(ConversionError, match=r"does not know the key 'learning_rate' = 0\.5"):
            find_conversion(checkpoint, families)
