"""A model of the family that runs in milliseconds, and a random transformers model like it."""

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


UNTIED: Final = replace(SHAPE, tied=False, draft_layers=1)


def tiny() -> TinyModel:
    """A model with a tied head, as in small sizes, and another with a head of its own and a block
    for multi-token prediction, which checkpoints of transformers leave out."""
    return _model(
        SHAPE, "tiny", random_checkpoint, others=(_model(UNTIED, "untied", untied_checkpoint),)
    )


def _model(
    shape: HybridShape,
    name: str,
    checkpoint: Callable[..., object],
    others: tuple[TinyModel, ...] = (),
) -> TinyModel:
    recipes = tensors(shape, dense_feed_forward(_WIDTH, _FEED_FORWARD))
    outline = ModelOutline(
        metadata=metadata(shape, {"feed_forward_length": _FEED_FORWARD}),
        tensors=tuple((recipe.name, recipe.shape) for recipe in recipes),
        group=shape.heads // shape.kv_heads,
        ranges=RANGES,
    )
    vocabulary = replace(
        SYNTHETIC_VOCABULARY, size=VOCABULARY, first_special=VOCABULARY - _SPECIALS
    )
    return tiny_model(
        ARCHITECTURE,
        outline,
        vocabulary,
        name=name,
        checkpoint=f"{__name__}:{checkpoint.__name__}",
        others=others,
    )


def untied_checkpoint(directory: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    return random_checkpoint(directory, UNTIED)


def random_checkpoint(
    directory: Path, shape: HybridShape = SHAPE
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Save a random transformers model; returns its function from tokens [n] to logits
    [n, vocabulary]."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    from kinfolk.testing.checkpoints import save_random

    kinds = ["linear_attention" if linear else "full_attention" for linear in shape.linear]
    config = Qwen3_5TextConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=_FEED_FORWARD,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        linear_num_key_heads=shape.key_heads,
        linear_num_value_heads=shape.value_heads,
        linear_key_head_dim=shape.key_dim,
        linear_value_head_dim=shape.value_dim,
        max_position_embeddings=shape.context,
        layer_types=kinds,
        full_attention_interval=shape.interval,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": shape.rope_base,
            "partial_rotary_factor": shape.rotary / shape.head_dim,
            "mrope_section": list(shape.sections),
        },
        tie_word_embeddings=shape.tied,
    )
    return save_random(Qwen3_5ForCausalLM(config), directory)
