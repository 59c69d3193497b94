"""Random Hugging Face models to convert and compare with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kinfolk.convert.dense import DenseShape


def dense_options(shape: DenseShape) -> dict[str, Any]:
    """The shape in the words that configurations of ``transformers`` use."""
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.epsilon,
        "tie_word_embeddings": shape.tied,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_base},
    }


def save_random(
    model: Any, directory: Path, adjust: Callable[[str, torch.Tensor], object] | None = None
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Give a model of ``transformers`` random weights and save it; what it makes of tokens int64
    [n] is float32 [n, vocabulary].

    Matrices keep vectors at their length. Vectors vary about what they were, which is 0 or 1 in a
    fresh model and would hide mistakes. ``adjust`` sees every parameter and buffer with its name
    after that, and may change it in place.
    """
    model = model.float().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim == 1:
                weight.add_(noise * 0.3)
            else:
                weight.copy_(noise * weight.shape[-1] ** -0.5)
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if adjust is not None:
                adjust(name, tensor)
    model.save_pretrained(directory)
    return lambda tokens: model(tokens[None]).logits[0]
