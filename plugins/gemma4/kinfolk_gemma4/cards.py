"""Cards of the family's released models."""

from __future__ import annotations

from typing import Final

from kinfolk.descriptors import ModelCard, SamplingDefaults

_SAMPLING: Final = SamplingDefaults(temperature=1.0, top_k=64, top_p=0.95)
_SIZES: Final = ("26b-a4b", "31b", "e2b", "e4b", "12b")
_ANSWER: Final = 16384
_REASONING: Final = _ANSWER - 4096
"""Thinking budget in tokens, which leaves room for the reply."""

CARDS: Final = tuple(
    ModelCard(f"gemma-4-{size}-it", _SAMPLING, max_tokens=_ANSWER, thinking_budget=_REASONING)
    for size in _SIZES
)
