"""Converts a Hugging Face checkpoint of a dense model to a GGUF file."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from kinfolk.convert.checkpoint import Config, HFCheckpoint
from kinfolk.convert.hybrid.conversion import hybrid_conversion
from kinfolk.convert.hybrid.tensors import FeedForward, dense_feed_forward
from kinfolk.convert.plan import Conversion
from kinfolk_qwen35.text import PRETOKENIZERS

ARCHITECTURE: Final = "qwen35"
MODEL_TYPES: Final = ("qwen3_5", "qwen3_5_text")


def conversion(checkpoint: HFCheckpoint) -> Conversion | None:
    """The conversion of a checkpoint of this family, ``None`` for any other."""
    return hybrid_conversion(checkpoint, ARCHITECTURE, MODEL_TYPES, PRETOKENIZERS, _feed_forward)


def _feed_forward(
    config: Config, names: Collection[str]
) -> tuple[FeedForward, Mapping[str, object]]:
    width = config.integer("intermediate_size")
    recipes = dense_feed_forward(config.integer("hidden_size"), width)
    return recipes, {"feed_forward_length": width}
