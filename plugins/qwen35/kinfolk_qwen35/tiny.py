"""A model of the family that runs in milliseconds, and a random one of transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kinfolk.convert.hybrid.keys import metadata
from kinfolk.convert.hybrid.shape import HybridShape, interval_layers
from kinfolk.convert.hybrid.tensors import dense_feed_forward, tensors
from kinfolk.descriptors import ModelOutline, TinyModel
from kinfolk.synth.tiny import VOCABULARY, tiny_model
from kinfolk_qwen35.convert import ARCHITECTURE
from kinfolk_qwen35.shapes import RANGES, SYNTHETIC_VOCABULARY

if TYPE_CHECKING:
    import torch

_WIDTH: Final = 64
_FEED_FORWARD: Final = 256
_SPECIALS: Final = len(SYNTHETIC_VOCABULARY.specials)

SHAPE: Final = HybridShape(
    vocabulary=VOCABULARY,
    hidden=_WIDTH,
    context=1024,
    heads=4,
    kv_heads=2,
    head_dim=32,
    rotary=8,
    rope_base=1e6,
    sections=(2, 1, 1),
    key_heads=2,
    value_heads=4,
    key_dim=16,
    value_dim=16,
    linear=interval_layers(4, 2),
    interval=2,
    tied=True,
)


def tiny() -> TinyModel:
    recipes = tensors(SHAPE, dense_feed_forward(_WIDTH, _FEED_FORWARD))
    outline = ModelOutline(
        metadata=metadata(SHAPE, {"feed_forward_length": _FEED_FORWARD}),
        tensors=tuple((recipe.name, recipe.shape) for recipe in recipes),
        group=SHAPE.heads // SHAPE.kv_heads,
        ranges=RANGES,
    )
    vocabulary = replace(
        SYNTHETIC_VOCABULARY, size=VOCABULARY, first_special=VOCABULARY - _SPECIALS
    )
    return tiny_model(
        ARCHITECTURE, outline, vocabulary, checkpoint="kinfolk_qwen35.tiny:random_checkpoint"
    )


def random_checkpoint(directory: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    """Save a random model of transformers; what it makes of tokens [n] is [n, vocabulary]."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    from kinfolk.testing.checkpoints import save_random

    kinds = ["linear_attention" if linear else "full_attention" for linear in SHAPE.linear]
    config = Qwen3_5TextConfig(
        vocab_size=SHAPE.vocabulary,
        hidden_size=SHAPE.hidden,
        intermediate_size=_FEED_FORWARD,
        num_hidden_layers=SHAPE.layers,
        num_attention_heads=SHAPE.heads,
        num_key_value_heads=SHAPE.kv_heads,
        head_dim=SHAPE.head_dim,
        linear_num_key_heads=SHAPE.key_heads,
        linear_num_value_heads=SHAPE.value_heads,
        linear_key_head_dim=SHAPE.key_dim,
        linear_value_head_dim=SHAPE.value_dim,
        max_position_embeddings=SHAPE.context,
        layer_types=kinds,
        full_attention_interval=SHAPE.interval,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": SHAPE.rope_base,
            "partial_rotary_factor": SHAPE.rotary / SHAPE.head_dim,
            "mrope_section": list(SHAPE.sections),
        },
        tie_word_embeddings=SHAPE.tied,
    )
    return save_random(Qwen3_5ForCausalLM(config), directory)
