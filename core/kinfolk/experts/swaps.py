"""Swaps of experts that the hook ``swap_experts`` asks for, a few in each step. Torch-free."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kinfolk.plans import ExpertSwap

SWAP_BYTES = 32 << 20
"""Most bytes of records that one step swaps, or one record."""


class SwapQueue:
    """Swaps that wait for a step, each with the bytes of its record."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[ExpertSwap, int]] = deque()

    def put(self, swaps: Sequence[ExpertSwap], nbytes: Sequence[int]) -> None:
        """Queue swaps; ``nbytes`` are the bytes of a record by layer. What waited still was asked
        for by older counts, and is dropped."""
        self._waiting = deque((swap, nbytes[swap.layer]) for swap in swaps)

    def take(self) -> tuple[ExpertSwap, ...]:
        """Those of the next step."""
        taken: list[ExpertSwap] = []
        left = SWAP_BYTES
        while self._waiting and (not taken or self._waiting[0][1] <= left):
            swap, nbytes = self._waiting.popleft()
            taken.append(swap)
            left -= nbytes
        return tuple(taken)
