"""Swaps of experts that the host asks for, a few in each step. Torch-free."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kinfolk.errors import HookValueError

SWAP_BYTES = 32 << 20
"""Most bytes of records that one step swaps, or one record."""


@dataclass(frozen=True, slots=True)
class ExpertSwap:
    """Brings an expert of a layer into a near bay; nothing if it is near when that happens."""

    layer: int
    expert: int
    bay: int


class SwapQueue:
    """Swaps that were asked for and wait for a step. ``refuses``: why one cannot be executed, empty
    if it can; ``nbytes``: bytes of a record of a layer."""

    def __init__(
        self, refuses: Callable[[int, int, int], str], nbytes: Callable[[int], int]
    ) -> None:
        self._refuses, self._nbytes = refuses, nbytes
        self._waiting: deque[ExpertSwap] = deque()

    def put(self, swaps: Sequence[tuple[int, int, int]]) -> None:
        """Queue (layer, expert, bay). Raises :class:`HookValueError` for one that is impossible,
        and for a bay or an expert that is named twice; then none is queued."""
        found = [ExpertSwap(*swap) for swap in swaps]
        seen: set[tuple[str, int, int]] = set()
        for swap in found:
            if why := self._refuses(swap.layer, swap.expert, swap.bay):
                raise HookValueError(f"hook swap_experts: {why}")
            for what, number in (("expert", swap.expert), ("bay", swap.bay)):
                if (what, swap.layer, number) in seen:
                    raise HookValueError(
                        f"hook swap_experts: {what} {number} of layer {swap.layer} is named twice"
                    )
                seen.add((what, swap.layer, number))
        self._waiting.extend(found)

    def take(self) -> tuple[ExpertSwap, ...]:
        """Those of the next step."""
        taken: list[ExpertSwap] = []
        left = SWAP_BYTES
        while self._waiting:
            nbytes = self._nbytes(self._waiting[0].layer)
            if taken and nbytes > left:
                break
            left -= nbytes
            taken.append(self._waiting.popleft())
        return tuple(taken)
