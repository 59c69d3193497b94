"""Cards of the family's released models, and of the bundled model."""

from __future__ import annotations

from typing import Final

from kinfolk.descriptors import ModelCard, SamplingDefaults

_THINKING: Final = SamplingDefaults(temperature=1.0, top_k=20, top_p=0.95)
_NAMES: Final = (
    "qwen3.5-0.8b",
    "qwen3.5-2b",
    "qwen3.5-4b",
    "qwen3.5-9b",
    "qwen3.5-27b",
    "qwen3.6-27b",
)
_ANSWER, _REASONING = 32768, 32256

POCKET: Final = ModelCard(
    "kinfolk-pocket",
    SamplingDefaults(temperature=0.2, top_k=0, top_p=0.95, repetition_penalty=1.05),
    chat=False,
    max_tokens=256,
)
CARDS: Final = (
    POCKET,
    *(
        ModelCard(name, _THINKING, max_tokens=_ANSWER, thinking_budget=_REASONING)
        for name in _NAMES
    ),
)
