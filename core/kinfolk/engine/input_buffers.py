"""Input buffers: every number that the device needs for a step, in one upload.

They have the exact shape of one step, or the shape of a bucket. In a bucket, rows that a step does
not fill are padding: they belong to no sequence and use the dummy slot and the dummy block.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kinfolk.model_api import BlockTable, StepBatch
from kinfolk.spec.sampling import PARAMETERS
from kinfolk.state.state import State
from kinfolk.state.tables import Changes, aligned
from kinfolk.state.transfer import Transfer
from kinfolk.types import CHUNK_POSITIONS, DUMMY, NO_PARENT
from kinfolk_kernels.row_layout import LaunchTraits, RowLayout, Segment

_ROW_FIELDS = ("tokens", "positions", "sequence", "parent", "limit", "ancestors", "arena", "path")
_SEQUENCE_FIELDS = ("arena_start", "slot", "context")
_SAMPLED_FIELDS = ("logit", "sampled_row", "sampled_count", "drafted", "sampled_slot", "budget")
"""In the order of the fields of :class:`SampledSequences`."""

PADDING = "padding"
"""The layout of arrays that no step has been written to."""


@dataclass(frozen=True, slots=True)
class BucketShape:
    """Sizes of the buffers: rows, sequences, sampled sequences, rows of logits, checkpoints to
    store, slices of prompts, short and long sequences and rows of short ones (see ``RowLayout``),
    changed entries of block tables."""

    rows: int
    sequences: int
    sampled: int
    logits: int
    stores: int = 0
    slices: int = 0
    short: int = 0
    long: int = 0
    short_rows: int = 0
    changes: int = 0


@dataclass(slots=True)
class StageContents:
    """What a copy of the host's arrays holds: the ``layout`` of its last step, ``PADDING`` or
    ``None`` = unknown, a number of ``changes`` of block tables, and whose ``sampling`` parameters,
    ``None`` = unknown."""

    layout: Hashable = None
    changes: int = 0
    sampling: Hashable = None


@dataclass(frozen=True, slots=True)
class SampledSequences:
    """The S sequences of a step that are sampled, of at most T rows.

    All tensors are int64: ``logit`` [S] index of the first row among rows with logits, ``row`` [S]
    index of that row in the step, ``count`` [S] rows with logits, ``drafted`` [S] 1 if rows may be
    rejected, ``slot`` [S], ``budget`` [S] most rows to keep. ``targets`` [pools, R]: at row d of a
    sequence, the place in the pool of the d-th row that is kept. ``width`` is T. ``single_rows``:
    sequence i consists of row i of the step.
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
    single_rows: bool = False


class InputBuffers:
    """Buffers of a step on the host and on the device; ``StepBatch`` describes their contents.

    ``single_rows``: a bucket for steps of one row a sequence, where row i is that of sequence i.
    ``stages``: copies in pinned memory; ``stages - 1`` further steps may be filled before the
    upload of a step is done.
    """

    def __init__(
        self, state: State, shape: BucketShape, *, single_rows: bool = False, stages: int = 1
    ) -> None:
        self.state = state
        self.shape = shape
        self.single_rows = single_rows
        self.order = np.arange(shape.rows)
        n, sequences, pools = shape.rows, shape.sequences, len(state.pools)
        fields: dict[str, tuple[str, tuple[int, ...]]] = {
            **dict.fromkeys(_ROW_FIELDS, ("int64", (n,))),
            **dict.fromkeys(_SEQUENCE_FIELDS, ("int64", (sequences,))),
            **dict.fromkeys(_SAMPLED_FIELDS, ("int64", (shape.sampled,))),
            "write": ("int64", (pools, n)),
            "targets": ("int64", (pools, n)),
            "logit_rows": ("int64", (shape.logits,)),
            "store_rows": ("int64", (shape.stores,)),
            "store_slots": ("int64", (shape.stores,)),
            "places": ("int64", (shape.changes,)),
            "values": ("int32", (shape.changes,)),
            "rows": ("int32", (1,)),
            "spans": ("int32", (sequences, 4)),
            "slices": ("int32", (shape.slices, 3)),
            # Kernels are compiled for aligned pointers.
            "entries": ("int32", (pools, -(-sequences // 16) * 16)),
            "short": ("int32", (shape.short,)),
            "long": ("int32", (shape.long,)),
            "short_rows": ("int32", (shape.short_rows,)),
            **{name: (kind, (shape.logits,)) for name, kind in PARAMETERS.items()},
        }
        self.transfer = Transfer(fields, state.device, stages)
        self.device = self.transfer.device
        self.segments: tuple[Segment, ...] = ()
        self.lengths: tuple[tuple[int, ...], ...] = ((),) * pools
        self._contents = [StageContents() for _ in range(self.transfer.stages)]
        self._pad()
        self._padding = self.transfer.bytes.copy()
        self.layout = PADDING

    @property
    def host(self) -> dict[str, npt.NDArray[np.generic]]:
        """The arrays to fill, by name."""
        return self.transfer.host

    @property
    def layout(self) -> Hashable:
        """What of the step in the host's arrays is the same in other steps: a step of the same
        layout may be written over it. ``None`` = unknown."""
        return self._contents[0].layout

    @layout.setter
    def layout(self, layout: Hashable) -> None:
        self._contents[0].layout = layout

    @property
    def sampling(self) -> Hashable:
        """Whose sampling parameters the host's arrays hold, and of how many rows each; ``None`` =
        unknown."""
        return self._contents[0].sampling

    @sampling.setter
    def sampling(self, sampling: Hashable) -> None:
        self._contents[0].sampling = sampling

    def turn(self) -> None:
        """Go on to the next stage, which holds an earlier step: the device may still read the
        current one."""
        self.transfer.turn()
        self._contents.append(self._contents.pop(0))

    def clear(self) -> None:
        """Fill the current stage with padding."""
        padding = StageContents(PADDING)
        if self._contents[0] != padding:
            self.transfer.bytes[:] = self._padding
            self._contents[0] = padding

    def _pad(self) -> None:
        host, rows = self.host, self.order
        for array in host.values():
            array[...] = 0
        host["sequence"][:] = rows if self.single_rows else max(0, self.shape.sequences - 1)
        host["parent"][:] = NO_PARENT
        host["arena"][:] = -1
        host["arena_start"][:] = -1
        host["write"][:] = DUMMY * CHUNK_POSITIONS + rows % CHUNK_POSITIONS
        host["store_rows"][:] = -1
        if self.shape.long:
            host["short"][:] = host["long"][:] = self.shape.sequences - 1
            host["short_rows"][:] = -1
        else:
            host["short"][:] = np.arange(self.shape.short)
            host["short_rows"][:] = np.arange(self.shape.short_rows)
        host["logit_rows"][:] = np.minimum(np.arange(self.shape.logits), max(0, len(rows) - 1))
        host["top_p"][:] = 1
        host["repetition"][:] = 1

    def put_changes(self, changes: Changes) -> None:
        """Replace the changes of block tables; at most ``shape.changes`` entries."""
        count, before = len(changes.places), self._contents[0].changes
        if count:
            self.host["places"][:count] = changes.places
            self.host["values"][:count] = changes.values
        if before > count:
            self.host["places"][count:before] = self.host["values"][count:before] = 0
        self._contents[0].changes = count

    # -- what the device reads ----------------------------------------------------------------

    def upload(self) -> None:
        """Copy the current stage to the device, on the current stream."""
        self.transfer.upload()

    def enter_changes(self) -> None:
        """Write the uploaded changes to the block tables on the device, and the number of rows
        that are no padding to where experts read it."""
        if self.state.real_rows is not None:
            self.state.real_rows.copy_(self.device["rows"])
        self.state.block_tables.enter(self.device["places"], self.device["values"])

    def batch(self, traits: LaunchTraits, *, full_width: bool) -> StepBatch:
        """The step. ``full_width``: block tables have their full width, so that no shape depends on
        lengths; otherwise they are as wide as the longest sequence of the step."""
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
            logit_rows=device["logit_rows"],
            store_rows=device["store_rows"],
            store_slots=device["store_slots"],
            tables=tuple(self._table(i, full_width) for i in range(len(self.lengths))),
            layout=RowLayout(
                device["spans"],
                device["path"],
                device["slices"],
                device["short"],
                device["long"],
                device["short_rows"],
                traits,
                self.segments,
            ),
        )

    def _table(self, pool: int, full_width: bool) -> BlockTable:
        tables, device = self.state.block_tables, self.device
        width = tables.widths[pool] if full_width else aligned(max(self.lengths[pool], default=0))
        # Indexed: index_select launches one program for a few rows, however wide they are.
        blocks, chunks = tables.entries[pool][:, :, :width][:, device["slot"]]
        length = device["entries"][pool, : self.shape.sequences]
        return BlockTable(blocks, chunks, length, self.lengths[pool])

    def sampled(
        self, traits: LaunchTraits, count: int | None = None, width: int | None = None
    ) -> SampledSequences:
        """The first ``count`` sampled sequences, by default all; ``width`` is the most rows of a
        sequence."""
        logit, row, rows, drafted, slot, budget = (
            self.device[name][:count] for name in _SAMPLED_FIELDS
        )
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
            single_rows=self.single_rows,
        )
