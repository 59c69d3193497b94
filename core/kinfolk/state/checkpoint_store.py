"""Checkpoints: chunks that they hold, and slots that keep their recurrent state. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

from kinfolk.errors import PoolExhausted, StateError
from kinfolk.state.chunks import Checkpoint, SlotLease
from kinfolk.state.geometry import visible_chunks
from kinfolk.state.operations import CopyRecurrent
from kinfolk.state.sequence_tables import SequenceTables
from kinfolk.types import DUMMY


class CheckpointStore:
    """Takes checkpoints of sequences, starts sequences from them, and drops them.

    ``free`` lists recurrent slots behind those of the sequences; the last one is used next.
    """

    def __init__(self, tables: SequenceTables) -> None:
        limits = tables.limits
        self.recurrent = tables.recurrent
        self.pools = tables.pools
        self.free = list(range(limits.slots + limits.checkpoints, limits.slots, -1))
        self.live: list[Checkpoint] = []
        self._tables = tables

    def can_take(
        self, lease: SlotLease, position: int, dropping: Sequence[Checkpoint] = ()
    ) -> bool:
        """A checkpoint needs exact chunks, a free slot, and room for the chunks it will hold; once
        ``dropping`` are dropped there is more of both."""
        seq = self._tables.sequence(lease)
        if not seq.exact or (self.recurrent and not self.free and not dropping):
            return False
        for index, pool in enumerate(self.pools):
            wanted = visible_chunks(pool.window, position)
            entries = seq.tables[index]
            if any(n not in entries or not entries[n].resident for n in wanted):
                return False
            if pool.window is None:
                continue
            gone = [chunk for held in dropping for chunk in held.chunks[index].values()]
            left = {chunk.identity: chunk.kept for chunk in gone}
            for chunk in gone:
                left[chunk.identity] -= 1
            room = self._tables.available(index) + sum(count == 0 for count in left.values())
            # Who holds a chunk beside the checkpoints will need a block of its own.
            chunks = [entries[n].chunk for n in wanted]
            if sum(left.get(chunk.identity, chunk.kept) == 0 for chunk in chunks) > room:
                return False
        return True

    def take(self, lease: SlotLease, position: int) -> Checkpoint:
        """Hold the state after ``position`` positions.

        At the committed length the recurrent state is copied now; at a later position, inside the
        slice about to run, the caller asks the step to store it in ``Checkpoint.slot``.
        """
        seq = self._tables.sequence(lease)
        if not seq.length <= position <= seq.extended:
            raise StateError(
                f"position {position} lies outside {seq.length}..{seq.extended} of slot "
                f"{lease.slot}"
            )
        if not self.can_take(lease, position):
            raise PoolExhausted(f"no checkpoint can be taken at position {position}")
        slot = self.free.pop() if self.recurrent else DUMMY
        chunks = self._tables.visible(seq, position)
        for pool, held in zip(self.pools, chunks, strict=True):
            for chunk in held.values():
                pool.keep(chunk)
        if self.recurrent and position == seq.length:
            self._tables.operations.append(CopyRecurrent(lease.slot, slot))
        checkpoint = Checkpoint(position, slot, chunks)
        self.live.append(checkpoint)
        return checkpoint

    def restore(self, checkpoint: Checkpoint, positions: int, slot: int | None = None) -> SlotLease:
        """A new sequence with room for ``positions`` positions that starts from a checkpoint."""
        if not checkpoint.live:
            raise StateError("a sequence cannot start from a checkpoint that was dropped")
        lease = self._tables.open(positions, checkpoint.length, slot)
        self._tables.share(lease, checkpoint.length, checkpoint.chunks, checkpoint.slot)
        return lease

    def drop(self, checkpoint: Checkpoint) -> None:
        if not checkpoint.live:
            raise StateError("the checkpoint was dropped before")
        checkpoint.live = False
        self.live.remove(checkpoint)
        if checkpoint.slot != DUMMY:
            self.free.append(checkpoint.slot)
        for pool, held in zip(self.pools, checkpoint.chunks, strict=True):
            for chunk in held.values():
                pool.drop(chunk)
