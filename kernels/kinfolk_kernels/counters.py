"""Counters of programs that have ended: by them the last program of a launch knows what it is."""

from __future__ import annotations

import torch

MOST_COUNTERS = 16

_COUNTERS: dict[torch.device, torch.Tensor] = {}


def counters(device: torch.device) -> torch.Tensor:
    """int32 [MOST_COUNTERS], zero before and after every launch: the last program to count resets
    its counter. Only one stream at a time may use them, and no program may count before the
    launches before its own have ended."""
    if device not in _COUNTERS:
        _COUNTERS[device] = torch.zeros(MOST_COUNTERS, dtype=torch.int32, device=device)
    return _COUNTERS[device]
