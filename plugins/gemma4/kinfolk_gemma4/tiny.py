"""A model of the family that runs in milliseconds, and a random transformers model like it.

It has every kind of layer: windowed and full, with own and with shared keys and values, experts
besides the dense network, and per-layer embeddings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kinfolk.descriptors import TinyModel
from kinfolk.synth.tiny import tiny_model
from kinfolk_gemma4.layout import ARCHITECTURE, AttentionShape, Gemma4Shape
from kinfolk_gemma4.shapes import SYNTHETIC_VOCABULARY, outline

if TYPE_CHECKING:
    import torch

SHAPE: Final = Gemma4Shape(
    vocabulary=600,
    hidden=64,
    context=1024,
    heads=4,
    full=AttentionShape(1, 32, 1e6),
    local=AttentionShape(2, 16, 1e4),
    window=72,
    windowed=(True, False, True, True, False),
    feed_forward=256,
    shared=2,
    keys_as_values=True,
    input_width=8,
    experts=6,
    top_k=2,
    expert_width=32,
    unused_keys=True,
)


def tiny() -> TinyModel:
    return tiny_model(
        ARCHITECTURE,
        outline(SHAPE, SHAPE.layers),
        replace(SYNTHETIC_VOCABULARY, size=SHAPE.vocabulary),
        checkpoint="kinfolk_gemma4.tiny:random_checkpoint",
    )


def random_checkpoint(directory: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    """Save a random transformers model; returns its function from tokens [n] to logits
    [n, vocabulary]."""
    from transformers import Gemma4ForCausalLM, Gemma4TextConfig

    from kinfolk.testing.checkpoints import save_random

    kinds = ["sliding_attention" if windowed else "full_attention" for windowed in SHAPE.windowed]
    config = Gemma4TextConfig(
        vocab_size=SHAPE.vocabulary,
        vocab_size_per_layer_input=SHAPE.vocabulary,
        hidden_size=SHAPE.hidden,
        intermediate_size=SHAPE.feed_forward,
        num_hidden_layers=SHAPE.layers,
        num_attention_heads=SHAPE.heads,
        num_key_value_heads=SHAPE.local.kv_heads,
        num_global_key_value_heads=SHAPE.full.kv_heads,
        head_dim=SHAPE.local.head_dim,
        global_head_dim=SHAPE.full.head_dim,
        hidden_size_per_layer_input=SHAPE.input_width,
        num_kv_shared_layers=SHAPE.shared,
        attention_k_eq_v=SHAPE.keys_as_values,
        enable_moe_block=True,
        num_experts=SHAPE.experts,
        top_k_experts=SHAPE.top_k,
        moe_intermediate_size=SHAPE.expert_width,
        sliding_window=SHAPE.window,
        max_position_embeddings=SHAPE.context,
        layer_types=kinds,
        final_logit_softcapping=SHAPE.softcap,
    )
    return save_random(Gemma4ForCausalLM(config), directory, _calm)


def _calm(name: str, weight: torch.Tensor) -> None:
    """Change norms in place to values as after training, which keep attention scores, which are not
    scaled, and the router's input, which is, near one."""
    if "q_norm" in name or "k_norm" in name:
        weight.mul_(weight.shape[0] ** -0.25)
    elif name.endswith("router.scale"):
        weight.mul_(weight.shape[0] ** 0.5)
    elif name.endswith("layer_scalar"):
        weight.fill_(0.8)
