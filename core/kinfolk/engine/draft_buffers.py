"""Draft buffers: the inputs of a draft, for lanes of which the host knows slots and sampling only.

The last chosen tokens and the committed positions are those that the step before left on the
device, so that nothing waits for its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kinfolk.draft_api import DraftBlock, DraftPlan
from kinfolk.model_api import BlockTable, StepBatch
from kinfolk.sched.request import Sampling
from kinfolk.spec.proposals import ProposalStore
from kinfolk.spec.sampling import signed_seed
from kinfolk.state.state import State
from kinfolk.state.transfer import Transfer
from kinfolk.types import CHUNK_POSITIONS, DUMMY, NO_PARENT
from kinfolk_kernels.row_layout import LaunchTraits, RowLayout, Segment


@dataclass(frozen=True, slots=True)
class Lane:
    """A sequence to draft for: its slot, how it is sampled, and whether a ``tree`` is wanted."""

    slot: int
    sampling: Sampling
    tree: bool = False


class DraftBuffers:
    """Buffers for ``lanes`` lanes of ``block`` rows, of each of which ``depth`` tokens are wanted;
    lanes that are not filled are padding.

    Rows of lane i are the arena's rows from ``i * block`` on; padding writes to the dummy block.
    """

    def __init__(
        self, state: State, lanes: int, plan: DraftPlan, depth: int, *, stages: int = 1
    ) -> None:
        self.state, self.lanes, self.depth = state, lanes, depth
        self.block = block = plan.block
        self._fill_token = plan.fill
        rows, pools = lanes * block, len(state.pools)
        self._transfer = Transfer(
            {
                "slot": ("int64", (lanes,)),
                "seed": ("int64", (lanes,)),
                "temperature": ("float32", (lanes,)),
                "tree": ("int64", (lanes,)),
                "arena": ("int64", (rows,)),
                "arena_start": ("int64", (lanes,)),
                "spans": ("int32", (lanes, 4)),
                # Kernels are compiled for aligned pointers.
                "entries": ("int32", (pools, -(-lanes // 16) * 16)),
            },
            state.device,
            stages,
        )
        device = state.device
        lane = torch.arange(lanes, device=device).repeat_interleave(block)
        row = torch.arange(rows, device=device)
        self._lane, self._place = lane, row - lane * block
        self._parent = torch.where(self._place == 0, NO_PARENT, row - 1)
        self._short = torch.arange(lanes, dtype=torch.int32, device=device)
        self._short_rows = row.int()
        self._row = row
        dummies = DUMMY * CHUNK_POSITIONS + row % CHUNK_POSITIONS
        self._write = dummies.expand(pools, rows).contiguous()
        self._nothing = torch.empty(0, dtype=torch.int64, device=device)
        self._slices = torch.empty(0, 3, dtype=torch.int32, device=device)
        # A row sees the rows of its lane and itself in the arena.
        self._seen = torch.full((rows,), -1 if block == 64 else (1 << block) - 1, device=device)
        self._chain = (torch.ones_like(row) << self._place) | ((1 << self._place) - 1)
        self._slots: list[int] = []
        self.put(())

    def put(self, lanes: Sequence[Lane]) -> None:
        """Fill the host's arrays; at most as many lanes as there are."""
        self._transfer.turn()
        host, count, block = self._transfer.host, len(lanes), self.block
        for array in host.values():
            array[...] = 0
        host["arena"][:] = host["arena_start"][:] = -1
        self._slots = slots = [lane.slot for lane in lanes]
        if not count:
            return
        host["slot"][:count] = slots
        host["seed"][:count] = [signed_seed(lane.sampling.seed) for lane in lanes]
        host["temperature"][:count] = [lane.sampling.temperature for lane in lanes]
        host["tree"][:count] = [lane.tree for lane in lanes]
        host["arena"][: count * block] = np.arange(count * block)
        host["arena_start"][:count] = starts = np.arange(count) * block
        spans = host["spans"][:count]
        spans[:, 0], spans[:, 1], spans[:, 2], spans[:, 3] = starts, block, slots, 1
        tables = self.state.block_tables
        for pool in range(len(self.state.pools)):
            host["entries"][pool, :count] = [tables.length(pool, slot) for slot in slots]

    def upload(self) -> None:
        """Copy the arrays to the device, on the current stream."""
        self._transfer.upload()

    @property
    def wants_tree(self) -> torch.Tensor:
        """int64 [lanes], 1 where a tree is wanted."""
        return self._transfer.device["tree"]

    def draft_block(self, store: ProposalStore) -> DraftBlock:
        """The rows to draft from, as the device knows them."""
        device, lane = self._transfer.device, self._lane
        slots = device["slot"]
        pending, length = store.drafts.pending[slots], store.length[slots]
        first = self._place == 0
        last = self.state.limits.context - 1
        return DraftBlock(
            tokens=pending,
            positions=length,
            slots=slots,
            seed=device["seed"],
            temperature=device["temperature"],
            depth=self.depth,
            batch=StepBatch(
                tokens=torch.where(first, pending[lane], self._fill_token),
                # Tables of positions end with the context.
                positions=(length[lane] + self._place).clamp_max(last),
                sequence_of_row=lane,
                parent_row=self._parent,
                limit=length[lane] - 1,
                ancestors=torch.where(device["arena"] >= 0, self._seen, 0),
                arena_row=device["arena"],
                arena_start=device["arena_start"],
                write_row=self._write,
                slot_of_sequence=slots,
                context_len=length,
                logit_rows=self._row,
                store_rows=self._nothing,
                store_slots=self._nothing,
                tables=tuple(self._table(pool) for pool in range(len(self.state.pools))),
                layout=self._layout(store),
            ),
        )

    def _layout(self, store: ProposalStore) -> RowLayout:
        block = self.block
        segments: tuple[Segment, ...] = ()
        if self.state.device.type == "cpu":
            # Back ends for the CPU read segments; there, reading a tensor waits for nothing.
            segments = tuple(
                Segment(i, slot, i * block, (i + 1) * block, int(store.length[slot]), True)
                for i, slot in enumerate(self._slots)
            )
        return RowLayout(
            self._transfer.device["spans"],
            self._chain,
            self._slices,
            self._short,
            self._short[:0],
            self._short_rows,
            LaunchTraits(False, block, True, (block,)),
            segments,
        )

    def _table(self, pool: int) -> BlockTable:
        tables, device = self.state.block_tables, self._transfer.device
        blocks, chunks = tables.entries[pool][:, device["slot"]]
        lengths = tuple(tables.length(pool, slot) for slot in self._slots)
        return BlockTable(blocks, chunks, device["entries"][pool, : self.lanes], lengths)
