"""Converts a Hugging Face model to a GGUF file."""

from __future__ import annotations

from kinfolk.convert.checkpoint import HFCheckpoint
from kinfolk.convert.dense import conversion as dense_conversion
from kinfolk.convert.dense import is_of_type, read_shape
from kinfolk.convert.plan import Conversion
from kinfolk_qwen3.text import PRETOKENIZERS

ARCHITECTURE = "qwen3"


def conversion(checkpoint: HFCheckpoint) -> Conversion | None:
    """The conversion of a dense Qwen3, ``None`` for any other model."""
    if not is_of_type(checkpoint, "qwen3"):
        return None
    shape = read_shape(checkpoint.config, head_norms=True)
    return dense_conversion(ARCHITECTURE, shape, PRETOKENIZERS)
