"""Block tables on the device: every slot's resident chunks in logical order, for all pools.

The dictionaries of the pools are the truth; what differs on the device is found slot by slot and
sent as single entries, so that a step uploads a few words however long its sequences are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kinfolk.errors import StateError
from kinfolk.plans import StateLimits
from kinfolk.state.geometry import blocks_for_sequence

Table = dict[int, int]
"""Block of each resident chunk of one slot."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Entries that differ: places int64 [n] in ``BlockTables.memory`` and their values int32."""

    places: npt.NDArray[np.int64]
    values: npt.NDArray[np.int32]


NO_CHANGES = Changes(np.empty(0, np.int64), np.empty(0, np.int32))


MAX_TABLE_CHANGES = 1024
"""Changed entries of block tables that a captured step has room for, whatever is paged: those of a
stored prefix of 32 768 tokens. They take 12 KB of its upload, 0.3 us; more entries are an upload of
their own, whose buffers take the host more than a millisecond to make."""

ALIGNED = 4
"""Entries that widths are multiples of: kernels are compiled for tables that begin at multiples of
16 bytes."""


class BlockTables:
    """``memory`` int32 holds blocks and chunks [slots + 1, width] of each pool side by side.

    What is beyond a table's length is 0. ``widths`` have room for the most entries of a table;
    ``entries`` of a pool are [2, slots + 1, width], blocks and then chunks. A captured step has
    room for ``usual_changes`` entries, those of a whole selection of one paged sequence among them.
    """

    def __init__(
        self,
        tables: Sequence[Sequence[Table]],
        windows: Sequence[int | None],
        limits: StateLimits,
        device: torch.device,
    ) -> None:
        self._tables = tables
        slots = limits.slots + 1
        self.widths = tuple(
            aligned(blocks_for_sequence(window, limits.context, limits.step_rows, limits.resident))
            for window in windows
        )
        self.usual_changes = MAX_TABLE_CHANGES
        if limits.resident is not None:
            # Chunks of a paged sequence come and go anywhere in its table.
            self.usual_changes += 2 * max(self.widths, default=0)
        starts = [0]
        for width in self.widths:
            starts.append(starts[-1] + 2 * slots * width)
        self._starts = starts
        self._known = np.zeros(starts[-1], np.int32)
        self._lengths = [[0] * slots for _ in self.widths]
        self._slots = slots
        self._dirty: set[tuple[int, int]] = set()
        self.memory = torch.zeros(max(1, starts[-1]), dtype=torch.int32, device=device)
        self.entries = tuple(self._view(pool) for pool in range(len(self.widths)))

    def touch(self, pool: int, slot: int) -> None:
        """The table of a slot has changed."""
        self._dirty.add((pool, slot))

    def length(self, pool: int, slot: int) -> int:
        """Resident chunks of a slot."""
        return len(self._tables[pool][slot])

    def take_changes(self) -> Changes:
        """What the device does not know yet; the caller brings it there with :meth:`enter`."""
        if not self._dirty:
            return NO_CHANGES
        changes = [self._compare(pool, slot) for pool, slot in sorted(self._dirty)]
        self._dirty.clear()
        if len(changes) == 1:
            return changes[0]
        places = np.concatenate([each.places for each in changes])
        return Changes(places, np.concatenate([each.values for each in changes]))

    def enter(self, places: torch.Tensor, values: torch.Tensor) -> None:
        """Write changes, both on the device; the same place may come twice with one value."""
        self.memory.scatter_(0, places, values)

    def invalidate(self) -> None:
        """Trust nothing on the device: a step failed, and its changes may not have got there."""
        self._known.fill(-1)
        for pool, width in enumerate(self.widths):
            self._lengths[pool] = [width] * self._slots
            self._dirty |= {(pool, slot) for slot in range(self._slots)}

    def _compare(self, pool: int, slot: int) -> Changes:
        table = self._tables[pool][slot]
        width, length = self.widths[pool], len(table)
        if length > width:
            raise StateError(f"slot {slot} has {length} chunks in pool {pool}, room is {width}")
        wanted = np.zeros((2, max(length, self._lengths[pool][slot])), np.int32)
        self._lengths[pool][slot] = length
        chunks = np.fromiter(table.keys(), np.int32, length)
        blocks = np.fromiter(table.values(), np.int32, length)
        order = chunks.argsort()
        wanted[0, :length] = blocks[order]
        wanted[1, :length] = chunks[order]
        start, stop = self._starts[pool : pool + 2]
        known = self._known[start:stop].reshape(2, -1, width)[:, slot, : wanted.shape[1]]
        rows, columns = (known != wanted).nonzero()
        known[:] = wanted
        places = start + slot * width + rows * (self._slots * width) + columns
        return Changes(places, wanted[rows, columns])

    def _view(self, pool: int) -> torch.Tensor:
        start, stop = self._starts[pool : pool + 2]
        return self.memory[start:stop].view(2, self._slots, self.widths[pool])


def aligned(entries: int) -> int:
    """The next width that tables may have."""
    return -(-entries // ALIGNED) * ALIGNED
