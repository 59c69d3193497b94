"""A model of the family that runs in milliseconds, and a random transformers model like it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kinfolk.convert.feed_forward import ExpertSizes
from kinfolk.convert.hybrid.keys import metadata
from kinfolk.convert.hybrid.shape import HybridShape, interval_layers
from kinfolk.convert.hybrid.tensors import tensors
from kinfolk.descriptors import ModelOutline, TinyModel
from kinfolk.synth.tiny import VOCABULARY, tiny_model
from kinfolk_qwen35moe.convert import ARCHITECTURE, MixtureSizes
from kinfolk_qwen35moe.shapes import RANGES, SYNTHETIC_VOCABULARY

if TYPE_CHECKING:
    import torch

_SPECIALS: Final = len(SYNTHETIC_VOCABULARY.specials)

MIXTURE: Final = MixtureSizes(ExpertSizes(experts=8, hidden=64, width=32), top_k=3, shared=256)
SHAPE: Final = HybridShape(
    vocabulary=VOCABULARY,
    hidden=MIXTURE.routed.hidden,
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
)


def tiny() -> TinyModel:
    """A model, and another with a block for multi-token prediction, which checkpoints of
    transformers leave out."""
    return _model("tiny", SHAPE, (_model("block", replace(SHAPE, draft_layers=1)),))


def _model(name: str, shape: HybridShape, others: tuple[TinyModel, ...] = ()) -> TinyModel:
    recipes = tensors(shape, partial(MIXTURE.recipes, fused=True))
    outline = ModelOutline(
        metadata=metadata(shape, MIXTURE.metadata()),
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
        checkpoint="kinfolk_qwen35moe.tiny:random_checkpoint",
        others=others,
    )


def random_checkpoint(directory: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    """Save a random transformers model; returns its function from tokens [n] to logits
    [n, vocabulary]."""
    from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

    from kinfolk.testing.checkpoints import save_random

    kinds = ["linear_attention" if linear else "full_attention" for linear in SHAPE.linear]
    config = Qwen3_5MoeTextConfig(
        vocab_size=SHAPE.vocabulary,
        hidden_size=SHAPE.hidden,
        num_hidden_layers=SHAPE.layers,
        num_attention_heads=SHAPE.heads,
        num_key_value_heads=SHAPE.kv_heads,
        head_dim=SHAPE.head_dim,
        linear_num_key_heads=SHAPE.key_heads,
        linear_num_value_heads=SHAPE.value_heads,
        linear_key_head_dim=SHAPE.key_dim,
        linear_value_head_dim=SHAPE.value_dim,
        num_experts=MIXTURE.routed.experts,
        num_experts_per_tok=MIXTURE.top_k,
        moe_intermediate_size=MIXTURE.routed.width,
        shared_expert_intermediate_size=MIXTURE.shared,
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
    return save_random(Qwen3_5MoeForCausalLM(config), directory)
