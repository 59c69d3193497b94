"""Random models of transformers, converted and run by us: the logits are the same.

Every released variant in small, and lengths that cross the borders of chunks and windows.
"""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file

WINDOW = 72
LENGTHS = (1, 63, 64, 65, WINDOW - 1, WINDOW, WINDOW + 1, 127, 128, 129, WINDOW + 65)
LOCAL, FULL = "sliding_attention", "full_attention"
PERIOD = [FULL, LOCAL, LOCAL, LOCAL]
YARN = {
    "rope_type": "yarn",
    "rope_theta": 5e5,
    "partial_rotary_factor": 0.5,
    "factor": 8.0,
    # So long that the range of pairs between fast and slow ones begins behind the first.
    "original_max_position_embeddings": 8192,
    "beta_fast": 64.0,
    "beta_slow": 1.0,
}
PLAIN = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}
BASE = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_attention_heads_per_layer": [4, 6, 6, 6, 4],
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "sliding_window": WINDOW,
    "layer_types": [*PERIOD, FULL],
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
    "moe_routed_scaling_factor": 2.5,
    "gating": True,
    "rope_parameters": {FULL: YARN, LOCAL: PLAIN},
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": [2, 24],
}


def yarn(**changes):
    return {"rope_parameters": {FULL: YARN | changes, LOCAL: PLAIN}}


NO_WINDOW = {
    "layer_types": [FULL] * 5,
    "num_attention_heads": 8,
    "num_attention_heads_per_layer": None,
}
VARIANTS = {
    "XS.2": yarn(attention_factor=1.0),
    "XS-2.1": yarn(attention_factor=0.1 * math.log(8) + 1),
    "S-2.1": yarn(factor=16.0, beta_fast=32.0, original_max_position_embeddings=64)
    | {"num_attention_heads_per_layer": [4, 10, 10, 10, 4], "num_experts_per_tok": 5},
    "M.1": NO_WINDOW
    | {
        "gating": "per-element",
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 2,
        "moe_routed_scaling_factor": 1.0,
    },
    "one gate an element, windows": {"gating": "per-element"},
    "a magnitude of its own": yarn(attention_factor=1.2),
    "a magnitude of two scales": yarn(mscale=1.5, mscale_all_dim=0.25),
    "no context extension, all experts, tied": {
        "rope_parameters": {FULL: {**PLAIN, "rope_theta": 5e5}, LOCAL: PLAIN},
        "num_experts_per_tok": 8,
        "tie_word_embeddings": True,
    },
    "windows first": {"layer_types": [LOCAL, FULL, LOCAL, FULL, LOCAL], "gating": "per-head"},
    "no dense layer, one key head": {
        "mlp_layer_types": ["sparse"] * 5,
        "num_key_value_heads": 1,
    },
}


def random_model(overrides):
    from transformers import LagunaConfig, LagunaForCausalLM

    torch.manual_seed(0)
    model = LagunaForCausalLM(LagunaConfig(**(BASE | overrides))).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Fresh norms and biases are constants, which hide mistakes.
            if name.endswith("e_score_correction_bias"):
                weight.copy_(torch.randn_like(weight) * 0.2)
            elif weight.ndim == 1:
                weight.add_(torch.randn_like(weight) * 0.3)
            else:
                weight.copy_(torch.randn_like(weight) * weight.shape[-1] ** -0.5)
    return model


@pytest.fixture(scope="module", params=VARIANTS, ids=list(VARIANTS))
def pair(request, converted):
    """A model of transformers and ours, loaded from its conversion."""
    model = random_model(VARIANTS[request.param])
    return model, converted(model)


@pytest.mark.parametrize("length", LENGTHS)
def test_logits_equal_transformers(pair, same_logits, length):
    same_logits(*pair, length)


def test_names_on_disk_and_in_memory_give_one_model(converted):
    model = random_model({})
    disk, memory = converted(model), converted(model, in_memory=True)
    names = [
        set(load_file(m.file.path.parent / "hf" / "model.safetensors")) for m in (disk, memory)
    ]
    block = "model.layers.1.mlp."
    for name in ("experts.7.gate_proj.weight", "experts.e_score_correction_bias"):
        assert block + name in names[0] - names[1]
    for name in ("experts.gate_up_proj", "gate.e_score_correction_bias"):
        assert block + name in names[1] - names[0]
    assert disk.file.path.read_bytes() == memory.file.path.read_bytes()


def test_the_correction_bias_matters_to_these_models(row_error):
    """Otherwise the comparisons would say nothing about it."""
    model = random_model({})
    tokens = torch.arange(100)[None]
    with torch.inference_mode():
        biased = model(tokens).logits[0]
        for name, weight in model.named_parameters():
            if name.endswith("e_score_correction_bias"):
                weight.zero_()
        assert row_error(model(tokens).logits[0], biased) > 0.05
