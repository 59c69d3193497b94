"""Cards of the family's released models."""

from __future__ import annotations

from typing import Final

from kinfolk.descriptors import ModelCard, SamplingDefaults

_THINKING: Final = SamplingDefaults(temperature=1.0, top_k=20, top_p=0.95, presence_penalty=1.5)
_LARGEST: Final = SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95)
_SAMPLING: Final = {
    "qwen3.5-35b-a3b": _THINKING,
    "qwen3.6-35b-a3b": _THINKING,
    "qwen3.5-122b-a10b": _THINKING,
    "qwen3.5-397b-a17b": _LARGEST,
}
_ANSWER, _REASONING = 32768, 32256

CARDS: Final = tuple(
    ModelCard(name, sampling, max_tokens=_ANSWER, thinking_budget=_REASONING)
    for name, sampling in _SAMPLING.items()
)
