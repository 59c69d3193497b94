"""A model of the family that runs in milliseconds, and a random transformers model like it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kinfolk.convert.dense import DenseShape, outline
from kinfolk.descriptors import TinyModel
from kinfolk.synth.tiny import VOCABULARY, tiny_model, tiny_vocabulary
from kinfolk_qwen3.convert import ARCHITECTURE

if TYPE_CHECKING:
    import torch

# A head is wider than its share of the hidden state, as in the smallest released models.
SHAPE: Final = DenseShape(VOCABULARY, 64, 1024, 3, 4, 2, 32, 256, 1e6, tied=True, head_norms=True)


def tiny() -> TinyModel:
    checkpoint = f"{__name__}:random_checkpoint"
    return tiny_model(ARCHITECTURE, outline(SHAPE), tiny_vocabulary("qwen2"), checkpoint=checkpoint)


def random_checkpoint(directory: Path, **changed: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Save a random transformers model; returns its function from tokens [n] to logits
    [n, vocabulary]."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from kinfolk.testing.checkpoints import dense_options, save_random

    config = Qwen3Config(**{**dense_options(SHAPE), **changed})
    return save_random(Qwen3ForCausalLM(config), directory)
