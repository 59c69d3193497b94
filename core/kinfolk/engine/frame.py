"""The memory of a step: every number that the device needs, in one upload.

A frame has the sizes of one step, or those of a bucket that many steps fit into. In a bucket the
rest is padding: rows of no sequence, which read and write the dummy slot and the dummy block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kinfolk.model_api import BlockTable, Segment, StepBatch
from kinfolk.spec.sampling import PARAMETERS
from kinfolk.state.state import State
from kinfolk.state.tables import Changes, aligned
from kinfolk.state.transfer import Transfer
from kinfolk.types import CHUNK, DUMMY, NO_PARENT
from kinfolk_kernels.paged_attention.work import Work
from kinfolk_kernels.step_index import StepIndex

Ints = npt.NDArray[np.int64]

LANES = ("logit", "lane_row", "lane_count", "drafted", "lane_slot", "budget")
"""Arrays of lanes, in the order of the fields of :class:`SampledSequences`."""

CHANGES = 128
"""Entries of block tables that a bucket has room for; more are sent before it."""


@dataclass(frozen=True, slots=True)
class BucketShape:
    """How much of everything a step has: rows, sequences, lanes, rows of logits, checkpoints to
    store, slices, changes of tables; ``few`` sequences have few rows, ``many`` many."""

    rows: int
    sequences: int
    lanes: int
    logits: int
    stores: int = 0
    slices: int = 0
    few: int = 0
    many: int = 0
    changes: int = CHANGES


@dataclass(frozen=True, slots=True)
class LaunchTraits:
    """What kernels are launched by: whether a segment is a single certain row, the most rows of a
    drafted one (0 = none), whether drafts may be trees, the numbers of rows a sequence may have
    among those with few, and the most among those with many."""

    singles: bool
    draft_rows: int
    trees: bool
    few_counts: tuple[int, ...]
    most_rows: int = 0


@dataclass(frozen=True, slots=True)
class SampledSequences:
    """The sampled sequences of a step, one lane each: L lanes, T rows at most.

    All int64: ``logit`` [L] first row among those with logits, ``row`` [L] the same row of the
    step, ``count`` [L] rows with logits, ``drafted`` [L] 1 where they may be rejected, ``slot``
    [L], ``budget`` [L] most rows to keep. ``targets`` [pools, R]: at a lane's row d, the place in
    the pool of the d-th row it keeps. ``alone``: lane i is row i of the step and no other.
    """

    logit: torch.Tensor
    row: torch.Tensor
    count: torch.Tensor
    drafted: torch.Tensor
    slot: torch.Tensor
    budget: torch.Tensor
    targets: torch.Tensor
    width: int
    trees: bool
    alone: bool = False


class InputBuffers:
    """Buffers of a step, on the host and on the device; see ``StepBatch`` for what they hold.

    ``single_rows``: a bucket for steps of one row a sequence, where row i is that of sequence i.
    """

    def __init__(
        self, state: State, sizes: BucketShape, *, single_rows: bool = False, stages: int = 1
    ) -> None:
        self.state = state
        self.sizes = sizes
        self.single_rows = single_rows
        self.order = np.arange(sizes.rows)
        n, sequences, pools = sizes.rows, sizes.sequences, len(state.pools)
        rows = ("tokens", "positions", "sequence", "parent", "limit", "ancestors", "arena", "path")
        each = ("arena_start", "slot", "context", "last")
        fields: dict[str, tuple[str, tuple[int, ...]]] = {
            **dict.fromkeys(rows, ("int64", (n,))),
            **dict.fromkeys(each, ("int64", (sequences,))),
            **dict.fromkeys(LANES, ("int64", (sizes.lanes,))),
            "write": ("int64", (pools, n)),
            "targets": ("int64", (pools, n)),
            "logit_rows": ("int64", (sizes.logits,)),
            "store_rows": ("int64", (sizes.stores,)),
            "store_slots": ("int64", (sizes.stores,)),
            "places": ("int64", (sizes.changes,)),
            "values": ("int32", (sizes.changes,)),
            "spans": ("int32", (sequences, 4)),
            "slices": ("int32", (sizes.slices, 3)),
            "first": ("int32", (sequences,)),
            "count": ("int32", (sequences,)),
            # Kernels are compiled for aligned pointers.
            "entries": ("int32", (pools, -(-sequences // 16) * 16)),
            "few": ("int32", (sizes.few,)),
            "many": ("int32", (sizes.many,)),
            **{name: (kind, (sizes.logits,)) for name, kind in PARAMETERS.items()},
        }
        self.transfer = Transfer(fields, state.device, stages)
        self.device = self.transfer.device
        self.segments: tuple[Segment, ...] = ()
        self.lengths: tuple[tuple[int, ...], ...] = ((),) * pools
        self._pad(single_rows)
        self._padding = self.transfer.bytes.copy()

    @property
    def host(self) -> dict[str, npt.NDArray[np.generic]]:
        """The arrays to be filled."""
        return self.transfer.host

    def clear(self) -> None:
        """Make everything padding, in the next stage: the device may still read the last one."""
        self.transfer.turn()
        self.transfer.bytes[:] = self._padding
        self.segments, self.lengths = (), ((),) * len(self.state.pools)

    def put_changes(self, changes: Changes) -> None:
        """Changes of block tables; at most as many as there is room for."""
        count = len(changes.places)
        if not count:
            return
        self.host["places"][:count] = changes.places
        self.host["values"][:count] = changes.values

    def _pad(self, single_rows: bool) -> None:
        host, rows = self.host, np.arange(self.sizes.rows)
        for array in host.values():
            array[...] = 0
        host["sequence"][:] = rows if single_rows else max(0, self.sizes.sequences - 1)
        host["parent"][:] = NO_PARENT
        host["arena"][:] = -1
        host["arena_start"][:] = -1
        host["write"][:] = DUMMY * CHUNK + rows % CHUNK
        host["few"][:] = np.arange(self.sizes.few)
        host["logit_rows"][:] = np.arange(self.sizes.logits)
        host["top_p"][:] = 1
        host["repetition"][:] = 1

    # -- what the device reads ----------------------------------------------------------------

    def enter_changes(self) -> None:
        """Write the uploaded changes of tables where they belong."""
        self.state.block_tables.enter(self.device["places"], self.device["values"])

    def batch(self, traits: LaunchTraits, *, full_width: bool) -> StepBatch:
        """The step. Tables are taken out of those of all slots: at their full width, so that
        nothing depends on lengths, or as wide as the longest of the step."""
        device = self.device
        return StepBatch(
            tokens=device["tokens"],
            positions=device["positions"],
            sequence_of_row=device["sequence"],
            parent_row=device["parent"],
            limit=device["limit"],
            ancestors=device["ancestors"],
            arena_row=device["arena"],
            arena_start=device["arena_start"],
            write_row=device["write"],
            slot_of_sequence=device["slot"],
            context_len=device["context"],
            last_row=device["last"],
            logit_rows=device["logit_rows"],
            store_rows=device["store_rows"],
            store_slots=device["store_slots"],
            tables=tuple(self._table(i, traits, full_width) for i in range(len(self.lengths))),
            segments=self.segments,
            index=StepIndex(
                device["spans"],
                device["path"],
                device["slices"],
                traits.singles,
                traits.draft_rows,
            ),
        )

    def _table(self, pool: int, traits: LaunchTraits, full_width: bool) -> BlockTable:
        tables, device = self.state.block_tables, self.device
        width = tables.widths[pool] if full_width else aligned(max(self.lengths[pool], default=0))
        work = Work(
            first=device["first"],
            count=device["count"],
            entries=device["entries"][pool, : self.sizes.sequences],
            few=device["few"],
            many=device["many"],
            few_counts=traits.few_counts,
            most_rows=traits.most_rows,
            trees=traits.trees,
        )
        # By index: index_select has one program for a few rows, whatever their width.
        blocks, chunks = tables.entries[pool][:, :, :width][:, device["slot"]]
        return BlockTable(
            blocks,
            chunks,
            work.entries,
            self.lengths[pool],
            work,
        )

    def lanes(
        self, traits: LaunchTraits, count: int | None = None, width: int | None = None
    ) -> SampledSequences:
        """The first ``count`` lanes, all if not given; ``width`` the most rows of any."""
        logit, row, rows, drafted, slot, budget = (self.device[name][:count] for name in LANES)
        return SampledSequences(
            logit=logit,
            row=row,
            count=rows,
            drafted=drafted,
            slot=slot,
            budget=budget,
            targets=self.device["targets"],
            width=width or max(1, traits.draft_rows),
            trees=traits.trees,
            alone=self.single_rows,
        )
