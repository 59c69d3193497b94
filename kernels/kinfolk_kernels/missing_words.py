"""Words that programs of a launch leave one another: a word that has come is its own flag."""

from __future__ import annotations

import torch

MISSING = -1
"""The bits of a word that no program has left yet: those of no result of arithmetic."""

_LEAST_WORDS = 1 << 20
_WORDS: dict[torch.device, list[torch.Tensor]] = {}
"""The last one of a device is in use; steps captured before may use the others."""


def missing_words(device: torch.device, count: int) -> torch.Tensor:
    """At least ``count`` words int32, all ``MISSING``.

    They are before and after every launch: who reads a word puts ``MISSING`` back. Only one stream
    at a time may use them, and no program may leave one before the launches before its own have
    ended.
    """
    words = _WORDS.setdefault(device, [])
    if not words or words[-1].shape[0] < count:
        size = max(count, _LEAST_WORDS)
        words.append(torch.full((size,), MISSING, dtype=torch.int32, device=device))
    return words[-1]
