"""Random models of transformers, converted and run by us: the logits are the same.

Lengths cross the borders of chunks; the configurations cover head ratios, tied and untied heads,
and how often a layer has full attention.
"""

from __future__ import annotations

import json

import pytest
import torch

from kinfolk.convert.driver import convert
from kinfolk.gguf.file import GGUFFile
from kinfolk_qwen35.family import Qwen35

LENGTHS = (63, 64, 65, 127, 128, 129)
BASE = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "max_position_embeddings": 1024,
    "full_attention_interval": 4,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "partial_rotary_factor": 1.0,
    "factor": 8.0,
    "original_max_position_embeddings": 128,
}
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
CONFIGS = {
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
}


def random_model(overrides):
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    options = BASE | overrides
    rope = options.pop("rope", {})
    interval = options.pop("full_attention_interval")
    layers = range(1, options["num_hidden_layers"] + 1)
    kinds = ["full_attention" if n % interval == 0 else "linear_attention" for n in layers]
    config = Qwen3_5TextConfig(
        **options,
        layer_types=kinds,
        full_attention_interval=interval,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1],
            **rope,
        },
    )
    torch.manual_seed(0)
    model = Qwen3_5ForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Fresh norms, decays and biases are constants, which hide mistakes.
            if weight.ndim == 1:
                weight.add_(torch.randn_like(weight) * 0.3)
            elif "conv1d" in name:
                weight.copy_(torch.randn_like(weight) * 0.5)
            else:
                weight.copy_(torch.randn_like(weight) * weight.shape[-1] ** -0.5)
    return model


@pytest.fixture(scope="module", params=CONFIGS, ids=list(CONFIGS))
def pair(request, converted):
    """A model of transformers and ours, loaded from its conversion."""
    model = random_model(CONFIGS[request.param])
    return model, converted(model)


@pytest.mark.parametrize("length", LENGTHS)
def test_logits_equal_transformers(pair, same_logits, length):
    same_logits(*pair, length)


# -- context extension ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXTENSIONS)
def test_every_key_of_context_extension_counts(name, converted, same_logits):
    model = random_model({"rope": YARN | EXTENSIONS[name]})
    same_logits(model, converted(model), 129)


@pytest.mark.parametrize(
    "name", ["a factor of its own", "no factor", "a range of its own", "two scales"]
)
def test_keys_of_context_extension_matter_to_these_models(name, row_error):
    """Otherwise the comparisons above would say nothing about them."""
    tokens = torch.arange(129)[None]
    with torch.inference_mode():
        usual = random_model({"rope": YARN})(tokens).logits[0]
        other = random_model({"rope": YARN | EXTENSIONS[name]})(tokens).logits[0]
    assert row_error(other, usual) > 0.01


def test_context_extension_may_stand_under_its_old_name(converted, same_logits, tmp_path):
    """Older configurations state the embedding in ``rope_scaling`` and its base beside it."""
    model = random_model({"rope": YARN | EXTENSIONS["a range of its own"]})
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
    convert(directory, tmp_path / "old.gguf", outtype="f32", families=[Qwen35()], tokenizer=False)
    new = converted(model).file
    with GGUFFile.open(tmp_path / "old.gguf") as old:
        assert list(old.metadata) == list(new.metadata)
        for key in set(old.metadata) - {"general.name", "general.basename"}:
            assert str(old.metadata.value(key)) == str(new.metadata.value(key)), key
    same_logits(older, converted(model), 129)
