"""Random models of transformers, converted and run by us: the logits are the same.

Lengths cross the borders of chunks; the configurations cover head ratios, how many of how many
experts a token visits, their widths, and both layouts in which checkpoints hold them.
"""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

LENGTHS = (1, 63, 64, 65, 127, 128, 129)
BASE = {
    "vocab_size": 512,
    "hidden_size": 64,
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
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
CONFIGS = {
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
}


def random_model(overrides):
    from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

    options = BASE | overrides
    rope = options.pop("rope", {})
    interval = options.pop("full_attention_interval")
    layers = range(1, options["num_hidden_layers"] + 1)
    kinds = ["full_attention" if n % interval == 0 else "linear_attention" for n in layers]
    config = Qwen3_5MoeTextConfig(
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
    model = Qwen3_5MoeForCausalLM(config).eval()
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


def test_both_layouts_of_experts_give_one_model(converted):
    """On disk every expert has matrices of its own; in memory all of a layer share two."""
    model = random_model({})
    split, fused = converted(model), converted(model, in_memory=True)
    names = [
        set(load_file(m.file.path.parent / "hf" / "model.safetensors")) for m in (split, fused)
    ]
    assert "model.layers.0.mlp.experts.7.gate_proj.weight" in names[0] - names[1]
    assert "model.layers.0.mlp.experts.gate_up_proj" in names[1] - names[0]
    assert split.file.path.read_bytes() == fused.file.path.read_bytes()
