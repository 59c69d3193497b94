"""Random models of transformers, converted and run by us: the logits are the same.

Every released variant in small, and what its configuration may change: ratios of heads, which
layers have full attention, windows, experts, tied outputs, context extension. Lengths cross the
borders of chunks and windows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from kinfolk.convert.driver import convert
from kinfolk.gguf.file import GGUFFile
from kinfolk.testing.driver import Driver

WINDOW = 72
CHUNK_LENGTHS = (1, 63, 64, 65, 127, 128, 129)
WINDOW_LENGTHS = (WINDOW - 1, WINDOW, WINDOW + 1, WINDOW + 65)
LOCAL, FULL = "sliding_attention", "full_attention"
COMMON = {
    "vocab_size": 512,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
}


@dataclass(frozen=True)
class RandomModels:
    """The models of one family that transformers builds from a configuration.

    ``base`` and a variant's entries are the arguments of ``build``. ``special`` changes in place
    the weights whose names contain its keys; the other parameters get the usual random numbers.
    """

    build: Callable[[dict[str, Any]], torch.nn.Module]
    base: Mapping[str, Any]
    variants: Mapping[str, Mapping[str, Any]]
    special: Mapping[str, Callable[[torch.Tensor], Any]]
    lengths: tuple[int, ...] = CHUNK_LENGTHS
    vocabulary: int = 512
    """Texts have ids below it; those above may stand for images."""

    def model(self, **changes: Any) -> Any:
        torch.manual_seed(0)
        model = self.build({**self.base, **changes}).eval()
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, weight in (*parameters.items(), *model.named_buffers()):
                special = [change for part, change in self.special.items() if part in name]
                if special:
                    special[0](weight)
                elif name not in parameters:
                    continue
                elif weight.ndim == 1:
                    # Fresh norms and biases are constants, which hide mistakes.
                    weight.add_(torch.randn_like(weight) * 0.3)
                else:
                    weight.copy_(torch.randn_like(weight) * weight.shape[-1] ** -0.5)
        return model


def random_numbers(scale: float) -> Callable[[torch.Tensor], Any]:
    return lambda weight: weight.copy_(torch.randn_like(weight) * scale)


# -- qwen35 and qwen35moe -------------------------------------------------------------------------


def build_qwen(name: str) -> Callable[[dict[str, Any]], torch.nn.Module]:
    def build(options: dict[str, Any]) -> torch.nn.Module:
        rope = options.pop("rope", {})
        interval = options["full_attention_interval"]
        layers = range(1, options["num_hidden_layers"] + 1)
        kinds = [FULL if number % interval == 0 else "linear_attention" for number in layers]
        config = getattr(transformers, f"{name}TextConfig")(
            **options,
            layer_types=kinds,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 1e6,
                "partial_rotary_factor": 0.25,
                "mrope_section": [2, 1, 1],
                **rope,
            },
        )
        return getattr(transformers, f"{name}ForCausalLM")(config)

    return build


DELTA_NETS = COMMON | {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "full_attention_interval": 4,
}
QWEN35_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "partial_rotary_factor": 1.0,
    "factor": 8.0,
    "original_max_position_embeddings": 128,
}
QWEN35 = RandomModels(
    build=build_qwen("Qwen3_5"),
    base=DELTA_NETS | {"intermediate_size": 96},
    variants={
        "heads 1:1, tied": {"linear_num_value_heads": 2, "tie_word_embeddings": True},
        "heads 1:2, untied": {"tie_word_embeddings": False},
        "heads 1:3, interval 2": {"linear_num_value_heads": 6, "full_attention_interval": 2},
        "one key head for all, interval 3": {
            "linear_num_key_heads": 1,
            "linear_num_value_heads": 4,
            "num_key_value_heads": 1,
            "full_attention_interval": 3,
            "num_hidden_layers": 6,
        },
    },
    special={"conv1d": random_numbers(0.5)},
)
QWEN35MOE = RandomModels(
    build=build_qwen("Qwen3_5Moe"),
    base=DELTA_NETS
    | {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
    },
    variants={
        "heads 1:1, 2 of 8": {"linear_num_value_heads": 2},
        "heads 1:2, all of 4, tied": {
            "num_experts": 4,
            "num_experts_per_tok": 4,
            "tie_word_embeddings": True,
        },
        "heads 1:3, 1 of 5, interval 2": {
            "linear_num_value_heads": 6,
            "num_experts": 5,
            "num_experts_per_tok": 1,
            "full_attention_interval": 2,
        },
        "heads 1:4, 10 of 24, wide shared": {
            "linear_num_key_heads": 1,
            "num_key_value_heads": 1,
            "num_experts": 24,
            "num_experts_per_tok": 10,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 160,
        },
        "context extended by every key": {
            "rope": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "partial_rotary_factor": 0.5,
                "factor": 8.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 6.0,
                "beta_slow": 0.25,
                "mscale": 1.5,
                "mscale_all_dim": 0.25,
                "truncate": True,
            },
        },
    },
    special={"conv1d": random_numbers(0.5)},
)


# -- gemma4 ---------------------------------------------------------------------------------------


def build_gemma4(options: dict[str, Any]) -> torch.nn.Module:
    if options.pop("wrapped", False):
        config = transformers.Gemma4Config(text_config=options, **GEMMA4_VISION)
        return transformers.Gemma4ForConditionalGeneration(config)
    if options.pop("unified", False):
        for key in ("vocab_size_per_layer_input", "hidden_size_per_layer_input"):
            del options[key]
        config = transformers.Gemma4UnifiedTextConfig(**options)
        return transformers.Gemma4UnifiedForCausalLM(config)
    return transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(**options))


def near_one(scale: Callable[[int], float]) -> Callable[[torch.Tensor], Any]:
    """Norms and scales around ``scale(their length)``."""
    return lambda weight: weight.copy_(
        (1 + 0.3 * torch.randn_like(weight)) * scale(weight.shape[0])
    )


GEMMA4_VISION = {
    "vision_config": {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 16,
    },
    **dict(zip(("boi_token_id", "eoi_token_id", "image_token_id", "video_token_id",
                "boa_token_id", "eoa_token_index", "audio_token_id"), range(505, 512),
               strict=True)),
}  # fmt: skip
GEMMA4_EXPERTS = {
    "enable_moe_block": True,
    "num_experts": 6,
    "top_k_experts": 2,
    "moe_intermediate_size": 24,
}
KEYS_AS_VALUES = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
LAYER_INPUTS = {
    "hidden_size_per_layer_input": 8,
    "num_hidden_layers": 10,
    "layer_types": [LOCAL, LOCAL, LOCAL, LOCAL, FULL] * 2,
}


def gemma4_rope(local: dict[str, Any], full: dict[str, Any]) -> dict[str, Any]:
    return {"rope_parameters": {LOCAL: {"rope_type": "default"} | local, FULL: full}}


GEMMA4 = RandomModels(
    build=build_gemma4,
    base=COMMON
    | {
        "vocab_size_per_layer_input": 512,
        "intermediate_size": 96,
        "num_hidden_layers": 6,
        "head_dim": 16,
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 0,
        "sliding_window": WINDOW,
        "layer_types": [LOCAL, LOCAL, FULL] * 2,
        "final_logit_softcapping": 30.0,
    },
    variants={
        "26B-A4B": KEYS_AS_VALUES | GEMMA4_EXPERTS,
        "31B": KEYS_AS_VALUES,
        "E2B": LAYER_INPUTS
        | {"num_kv_shared_layers": 5, "use_double_wide_mlp": True, "num_key_value_heads": 1},
        "E4B": LAYER_INPUTS | {"num_kv_shared_layers": 4},
        "experts, values of their own": GEMMA4_EXPERTS | {"top_k_experts": 3},
        "no sharing, all wide keys given": LAYER_INPUTS | {"use_double_wide_mlp": True},
        "untied, no softcap": {"tie_word_embeddings": False, "final_logit_softcapping": None},
        "another share of turning pairs": gemma4_rope(
            {"rope_theta": 3e4},
            {"rope_type": "proportional", "rope_theta": 2e5, "partial_rotary_factor": 0.5},
        ),
        "all pairs turn": gemma4_rope(
            {"rope_theta": 1e4}, {"rope_type": "proportional", "rope_theta": 1e5}
        ),
        "one embedding for all": gemma4_rope(
            {"rope_theta": 1e4}, {"rope_type": "default", "rope_theta": 1e5}
        ),
        "12B": KEYS_AS_VALUES | {"unified": True},
        "inside a multimodal model": LAYER_INPUTS | {"num_kv_shared_layers": 4, "wrapped": True},
    },
    special={
        "layer_scalar": lambda weight: weight.fill_(0.6 + 0.5 * torch.rand(()).item()),
        # Scores are not divided by anything: as in trained models, the norms keep them low.
        "q_norm": near_one(lambda length: length**-0.25),
        "k_norm": near_one(lambda length: length**-0.25),
        "router.scale": near_one(lambda length: length**0.5),
    },
    lengths=(*CHUNK_LENGTHS, *WINDOW_LENGTHS),
    vocabulary=505,
)


# -- laguna ---------------------------------------------------------------------------------------


def build_laguna(options: dict[str, Any]) -> torch.nn.Module:
    return transformers.LagunaForCausalLM(transformers.LagunaConfig(**options))


LAGUNA_YARN = {
    "rope_type": "yarn",
    "rope_theta": 5e5,
    "partial_rotary_factor": 0.5,
    "factor": 8.0,
    # Long enough that the ramp between fast and slow pairs begins after the first pair.
    "original_max_position_embeddings": 8192,
    "beta_fast": 64.0,
    "beta_slow": 1.0,
}
LAGUNA_PLAIN = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}


def laguna_yarn(**changes: float) -> dict[str, Any]:
    return {"rope_parameters": {FULL: LAGUNA_YARN | changes, LOCAL: LAGUNA_PLAIN}}


LAGUNA = RandomModels(
    build=build_laguna,
    base=COMMON
    | laguna_yarn()
    | {
        "intermediate_size": 96,
        "num_hidden_layers": 5,
        "num_attention_heads_per_layer": [4, 6, 6, 6, 4],
        "sliding_window": WINDOW,
        "layer_types": [FULL, LOCAL, LOCAL, LOCAL, FULL],
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 48,
        "moe_routed_scaling_factor": 2.5,
        "gating": True,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": [2, 24],
    },
    variants={
        "XS.2": laguna_yarn(attention_factor=1.0),
        "XS-2.1": laguna_yarn(attention_factor=0.1 * math.log(8) + 1),
        "S-2.1": laguna_yarn(factor=16.0, beta_fast=32.0, original_max_position_embeddings=64)
        | {"num_attention_heads_per_layer": [4, 10, 10, 10, 4], "num_experts_per_tok": 5},
        "M.1": {
            "layer_types": [FULL] * 5,
            "num_attention_heads": 8,
            "num_attention_heads_per_layer": None,
            "gating": "per-element",
            "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 2,
            "moe_routed_scaling_factor": 1.0,
        },
        "one gate an element, windows": {"gating": "per-element"},
        "a magnitude of its own": laguna_yarn(attention_factor=1.2),
        "a magnitude of two scales": laguna_yarn(mscale=1.5, mscale_all_dim=0.25),
        "no context extension, all experts, tied": {
            "rope_parameters": {FULL: LAGUNA_PLAIN | {"rope_theta": 5e5}, LOCAL: LAGUNA_PLAIN},
            "num_experts_per_tok": 8,
            "tie_word_embeddings": True,
        },
        "windows first": {"layer_types": [LOCAL, FULL, LOCAL, FULL, LOCAL], "gating": "per-head"},
        "no dense layer, one key head": {
            "mlp_layer_types": ["sparse"] * 5,
            "num_key_value_heads": 1,
        },
    },
    special={"e_score_correction_bias": random_numbers(0.2)},
    lengths=(*CHUNK_LENGTHS, *WINDOW_LENGTHS),
)


# -- all families ---------------------------------------------------------------------------------

FAMILIES = {"qwen35": QWEN35, "qwen35moe": QWEN35MOE, "gemma4": GEMMA4, "laguna": LAGUNA}


@pytest.fixture(scope="module")
def pair(converted):
    """``pair(family, variant)``: a model of transformers and ours, loaded from its conversion."""

    @lru_cache(maxsize=1)  # tests of a variant follow each other
    def build(family, variant):
        model = FAMILIES[family].model(**FAMILIES[family].variants[variant])
        return model, converted(model)

    return build


@pytest.mark.parametrize(
    ("family", "variant", "length"),
    [
        pytest.param(family, variant, length, id=f"{family}-{variant}-{length}")
        for family, models in FAMILIES.items()
        for variant in models.variants
        for length in models.lengths
    ],
)
def test_logits_equal_transformers(pair, same_logits, family, variant, length):
    same_logits(*pair(family, variant), length, FAMILIES[family].vocabulary)


@pytest.mark.parametrize(
    ("family", "variant"),
    [
        ("qwen35", "heads 1:2, untied"),
        ("qwen35moe", "heads 1:1, 2 of 8"),
        ("gemma4", "26B-A4B"),
        ("gemma4", "E2B"),
        ("laguna", "XS.2"),
        ("laguna", "M.1"),
    ],
)
def test_features_equal_the_hidden_states_of_transformers(pair, row_error, family, variant):
    """``hidden_states[i + 1]`` is the output of layer i, with experts, embeddings of the layer and
    its scale; the last entry is normed."""
    model, loaded = pair(family, variant)
    ours = copy(loaded.model)
    tokens = torch.randint(0, FAMILIES[family].vocabulary, (WINDOW + 33,))
    with torch.inference_mode():
        *states, normed = model(tokens[None], output_hidden_states=True).hidden_states[1:]
    ours.features(range(len(states)), final=True)
    driver = Driver(replace(loaded, model=ours))
    driver.feed({driver.open(): tokens.tolist()})
    found = driver.features()[0].float().split(normed.shape[-1], 1)
    for theirs, features in zip((*states, normed), found, strict=True):
        # Half a unit in the last place of 8 bits, and what float32 sums differ by.
        assert row_error(features, theirs[0]) < 2**-8 + 2e-4


ON_DISK_ALONE = {
    "qwen35moe": {"model.layers.0.mlp.experts.7.gate_proj.weight"},
    "laguna": {
        "model.layers.1.mlp.experts.7.gate_proj.weight",
        "model.layers.1.mlp.experts.e_score_correction_bias",
    },
}
IN_MEMORY_ALONE = {
    "qwen35moe": {"model.layers.0.mlp.experts.gate_up_proj"},
    "laguna": {
        "model.layers.1.mlp.experts.gate_up_proj",
        "model.layers.1.mlp.gate.e_score_correction_bias",
    },
}


@pytest.mark.parametrize("family", ["qwen35moe", "laguna"])
def test_both_layouts_of_experts_give_one_model(converted, family):
    """On disk every expert has matrices of its own; in memory all of a layer share two."""
    model = FAMILIES[family].model()
    disk, memory = converted(model), converted(model, in_memory=True)
    disk_names, memory_names = (
        set(load_file(loaded.file.path.parent / "hf" / "model.safetensors"))
        for loaded in (disk, memory)
    )
    assert ON_DISK_ALONE[family] <= disk_names - memory_names
    assert IN_MEMORY_ALONE[family] <= memory_names - disk_names
    assert disk.file.path.read_bytes() == memory.file.path.read_bytes()


def test_the_correction_bias_of_laguna_matters_to_these_models(row_error):
    """Otherwise the comparisons would not test it."""
    model = LAGUNA.model()
    tokens = torch.arange(100)[None]
    with torch.inference_mode():
        biased = model(tokens).logits[0]
        for name, weight in model.named_parameters():
            if name.endswith("e_score_correction_bias"):
                weight.zero_()
        assert row_error(model(tokens).logits[0], biased) > 0.05


# -- context extension of qwen35 ------------------------------------------------------------------

EXTENSIONS = {
    "nothing else": {},
    "a factor of its own": {"attention_factor": 1.4},
    "no factor": {"attention_factor": 1.0},
    "a range of its own": {"beta_fast": 6.0, "beta_slow": 0.25},
    "a range that is not stated": {"beta_fast": None, "beta_slow": 0},
    "two scales": {"mscale": 1.5, "mscale_all_dim": 0.25},
    "one scale": {"mscale": 1.5},
    "a factor and scales": {"attention_factor": 1.4, "mscale": 1.5, "mscale_all_dim": 0.25},
}


def extended_model(extension: str) -> Any:
    return QWEN35.model(rope=QWEN35_YARN | EXTENSIONS[extension])


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_every_key_of_context_extension_counts(extension, converted, same_logits):
    model = extended_model(extension)
    same_logits(model, converted(model), 129)


@pytest.mark.parametrize(
    "extension", ["a factor of its own", "no factor", "a range of its own", "two scales"]
)
def test_keys_of_context_extension_matter_to_these_models(extension, row_error):
    """Otherwise the comparisons above would not test them."""
    tokens = torch.arange(129)[None]
    with torch.inference_mode():
        usual = extended_model("nothing else")(tokens).logits[0]
        other = extended_model(extension)(tokens).logits[0]
    assert row_error(other, usual) > 0.01


def test_context_extension_may_stand_under_its_old_name(converted, same_logits, families, tmp_path):
    """Older configurations state the embedding in ``rope_scaling`` and its base beside it."""
    model = extended_model("a range of its own")
    directory = tmp_path / "hf"
    model.save_pretrained(directory)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    for key in ("rope_theta", "partial_rotary_factor"):
        config[key] = rope.pop(key)
    rope["type"] = rope.pop("rope_type")
    path.write_text(json.dumps(config | {"rope_scaling": rope}))
    older = type(model).from_pretrained(directory, dtype=torch.float32).eval()
    convert(directory, tmp_path / "old.gguf", outtype="f32", families=families, tokenizer=False)
    loaded = converted(model)
    new = loaded.file
    with GGUFFile.open(tmp_path / "old.gguf") as old:
        assert list(old.metadata) == list(new.metadata)
        for key in set(old.metadata) - {"general.name", "general.basename"}:
            assert str(old.metadata.value(key)) == str(new.metadata.value(key)), key
    same_logits(older, loaded, 129)
