"""Random models of transformers, converted and run by us: the logits are the same.

Lengths cross the borders of chunks; the configurations cover head ratios, tied and untied heads,
and how often a layer has full attention.
"""

from __future__ import annotations

import pytest
import torch

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
