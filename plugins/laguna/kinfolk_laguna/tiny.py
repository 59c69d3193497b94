"""A model of the family that runs in milliseconds, and a random transformers model like it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kinfolk.config import Yarn
from kinfolk.convert.feed_forward import ExpertSizes
from kinfolk.descriptors import ModelOutline, TinyModel
from kinfolk.synth.tiny import VOCABULARY, tiny_model
from kinfolk_laguna.layout import ARCHITECTURE, LagunaSizes, RopeSizes, metadata, tensors
from kinfolk_laguna.shapes import RANGES, SYNTHETIC_VOCABULARY

if TYPE_CHECKING:
    import torch

_YARN: Final = Yarn(factor=8, original_context=64, beta_fast=64)

SIZES: Final = LagunaSizes(
    vocabulary=VOCABULARY,
    hidden=64,
    context=1024,
    heads=(4, 6, 6, 4),
    kv_heads=2,
    head_dim=32,
    gates=(1, 1, 1, 1),
    windowed=(False, True, True, False),
    window=72,
    rope=RopeSizes(16, 5e5),
    window_rope=RopeSizes(32, 1e4),
    yarn=_YARN,
    dense=1,
    feed_forward=256,
    routed=ExpertSizes(experts=8, hidden=64, width=32),
    top_k=3,
    shared=64,
    scale=2.5,
)


def tiny() -> TinyModel:
    outline = ModelOutline(
        metadata=metadata(SIZES),
        tensors=tuple((recipe.name, recipe.shape) for recipe in tensors(SIZES)),
        group=SIZES.heads[0] // SIZES.kv_heads,
        ranges=RANGES,
    )
    return tiny_model(
        ARCHITECTURE,
        outline,
        replace(SYNTHETIC_VOCABULARY, size=VOCABULARY),
        checkpoint="kinfolk_laguna.tiny:random_checkpoint",
    )


def random_checkpoint(directory: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    """Save a random transformers model; returns its function from tokens [n] to logits
    [n, vocabulary]."""
    from transformers import LagunaConfig, LagunaForCausalLM

    from kinfolk.testing.checkpoints import save_random

    local, full = "sliding_attention", "full_attention"
    config = LagunaConfig(
        vocab_size=SIZES.vocabulary,
        hidden_size=SIZES.hidden,
        intermediate_size=SIZES.feed_forward,
        num_hidden_layers=SIZES.layers,
        num_attention_heads=SIZES.heads[0],
        num_attention_heads_per_layer=list(SIZES.heads),
        num_key_value_heads=SIZES.kv_heads,
        head_dim=SIZES.head_dim,
        max_position_embeddings=SIZES.context,
        sliding_window=SIZES.window,
        layer_types=[local if windowed else full for windowed in SIZES.windowed],
        num_experts=SIZES.routed.experts,
        num_experts_per_tok=SIZES.top_k,
        moe_intermediate_size=SIZES.routed.width,
        shared_expert_intermediate_size=SIZES.shared,
        moe_routed_scaling_factor=SIZES.scale,
        gating=True,
        rope_parameters={
            full: {
                "rope_type": "yarn",
                "rope_theta": SIZES.rope.base,
                "partial_rotary_factor": SIZES.rope.rotary / SIZES.head_dim,
                "factor": _YARN.factor,
                "original_max_position_embeddings": _YARN.original_context,
                "beta_fast": _YARN.beta_fast,
                "beta_slow": _YARN.beta_slow,
            },
            local: {
                "rope_type": "default",
                "rope_theta": SIZES.window_rope.base,
                "partial_rotary_factor": SIZES.window_rope.rotary / SIZES.head_dim,
            },
        },
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=[2, 24],
    )
    return save_random(LagunaForCausalLM(config), directory)
