"""Who holds which block: the torch-free bookkeeping of sequences, chunks and checkpoints.

A chunk is 64 logical positions of a sequence, a block its place in a pool. Chunks are shared by
reference: forks and checkpoints hold references, and only the sequence that started a chunk
appends to it. Every decision becomes a :mod:`kinfolk.state.operations` value; nothing else changes
the tensors.

Pools follow ``StatePlan.windows``. In the pool of full attention a sequence keeps every chunk it
has not been told to evict; in a windowed pool a chunk leaves when the window has passed it.

Admission is a promise: ``open`` reserves blocks for all positions a sequence may reach, so a
running sequence never fails for lack of room.
"""

from __future__ import annotations

from kinfolk.errors import PoolExhausted, StateError
from kinfolk.plans import PoolRule, StateLimits
from kinfolk.state.chunks import (
    BlockPool,
    Checkpoint,
    Chunk,
    Entry,
    Sequence,
    SlotLease,
)
from kinfolk.state.geometry import (
    blocks_for_sequence,
    chunks_for,
    first_visible_chunk,
    visible_chunks,
)
from kinfolk.state.integrity import check_books, require
from kinfolk.state.operations import (
    ClearSlot,
    CopyBlock,
    CopyRecurrent,
    DropSaved,
    LoadBlock,
    MapChunk,
    SaveBlock,
    StateOperation,
    UnmapChunk,
)
from kinfolk.types import CHUNK, DUMMY


class Ledger:
    """Bookkeeping of one model's state. Not thread-safe: the engine's thread owns it.

    ``rules`` say what may be evicted; without them all that is sealed.
    """

    def __init__(
        self,
        windows: tuple[int | None, ...],
        limits: StateLimits,
        *,
        recurrent: bool,
        rules: tuple[PoolRule, ...] = (),
    ) -> None:
        if len(limits.blocks) != len(windows):
            raise StateError(f"{len(windows)} pools need {len(windows)} sizes, got {limits.blocks}")
        self.limits = limits
        self.rules = rules or tuple(PoolRule(window, sink=0, tail=0) for window in windows)
        self.recurrent = recurrent
        self.pools = tuple(
            BlockPool(size, window) for size, window in zip(limits.blocks, windows, strict=True)
        )
        self._epochs = [0] * (limits.slots + 1)
        self._free_slots = list(range(limits.slots, DUMMY, -1))
        self._free_checkpoints = list(range(limits.slots + limits.checkpoints, limits.slots, -1))
        self._sequences: dict[int, Sequence] = {}
        self._checkpoints: list[Checkpoint] = []
        self._next_identity = 1
        self._operations: list[StateOperation] = []

    # -- questions ----------------------------------------------------------------------------

    @property
    def free_slots(self) -> int:
        return len(self._free_slots)

    @property
    def free_checkpoints(self) -> int:
        return len(self._free_checkpoints)

    def available(self, pool: int) -> int:
        """Free blocks that are promised to nobody.

        In a windowed pool a block with several holders is charged for all but one of them: when
        one holder's window moves on, it needs a new block although none became free.
        """
        blocks = self.pools[pool]
        pending = sum(self._outstanding(seq, pool) for seq in self._sequences.values())
        charged = 0
        if blocks.window is not None:
            charged = sum(chunk.refs - 1 for chunk in self._chunks(pool))
        return len(blocks.free) - pending - charged

    def needed(self, positions: int, start: Checkpoint | None = None) -> tuple[int, ...]:
        """Blocks of each pool that a sequence of ``positions`` positions would take."""
        need = []
        for index, blocks in enumerate(self.pools):
            if blocks.window is None:
                shared = 0 if start is None else start.length // CHUNK
                need.append(chunks_for(positions) - shared)
            else:
                # Sharing saves nothing here: each holder needs a block when the window moves on.
                need.append(self._promise(index, positions))
        return tuple(need)

    def fits_ever(self, positions: int) -> bool:
        """Whether such a sequence could be opened on an empty ledger."""
        return all(
            need <= pool.size for need, pool in zip(self.needed(positions), self.pools, strict=True)
        )

    def can_open(self, positions: int, start: Checkpoint | None = None) -> bool:
        return bool(self._free_slots) and all(
            need <= self.available(index)
            for index, need in enumerate(self.needed(positions, start))
        )

    def is_current(self, lease: SlotLease) -> bool:
        held = self._sequences.get(lease.slot)
        return held is not None and (held.lease is lease or held.lease == lease)

    def length(self, lease: SlotLease) -> int:
        return self._of(lease).length

    def table(self, lease: SlotLease, pool: int) -> list[tuple[int, int]]:
        """Resident (chunk, block) pairs in logical order."""
        entries = self._of(lease).tables[pool]
        return [(n, entries[n].chunk.block) for n in sorted(entries) if entries[n].resident]

    def can_checkpoint(self, lease: SlotLease, position: int) -> bool:
        """A checkpoint needs exact chunks, a free place, and room for what it will pin."""
        seq = self._of(lease)
        if not seq.exact or (self.recurrent and not self._free_checkpoints):
            return False
        for index, pool in enumerate(self.pools):
            wanted = self._visible(index, position)
            entries = seq.tables[index]
            if any(n not in entries or not entries[n].resident for n in wanted):
                return False
            if pool.window is not None and len(wanted) > self.available(index):
                return False
        return True

    # -- sequences ----------------------------------------------------------------------------

    def open(self, positions: int, start: Checkpoint | None = None) -> SlotLease:
        """Lease a slot with room for ``positions`` positions, empty or restored from ``start``.

        Raises :class:`PoolExhausted` when ``can_open`` is false.
        """
        if start is not None and not start.live:
            raise StateError("a sequence cannot start from a checkpoint that was dropped")
        if start is not None and start.length > positions:
            raise StateError(
                f"a sequence of {positions} positions cannot start from {start.length} of them"
            )
        if not self.can_open(positions, start):
            room = ", ".join(str(self.available(i)) for i in range(len(self.pools)))
            raise PoolExhausted(
                f"no room for a sequence of {positions} positions: it needs "
                f"{self.needed(positions, start)} blocks, available {room or 'none'}, "
                f"free slots {self.free_slots}"
            )
        slot = self._free_slots.pop()
        self._epochs[slot] += 1
        seq = Sequence(
            SlotLease(slot, self._epochs[slot]),
            tuple(self._promise(i, positions) for i in range(len(self.pools))),
            tuple({} for _ in self.pools),
        )
        self._sequences[slot] = seq
        self._operations.append(ClearSlot(slot))
        if start is not None:
            self._restore(seq, start)
        return seq.lease

    def extend(self, lease: SlotLease, stop: int) -> None:
        """Give every position below ``stop`` a place to be written to."""
        seq = self._of(lease)
        if chunks_for(stop) <= chunks_for(seq.extended):
            seq.extended = max(seq.extended, stop)
            return
        chunks = range(chunks_for(seq.extended), chunks_for(stop))
        for index, pool in enumerate(self.pools):
            held = len(chunks) + (
                len(seq.tables[index]) if pool.window is not None else chunks.start
            )
            if held > seq.promised[index]:
                raise StateError(
                    f"slot {lease.slot} was promised {seq.promised[index]} blocks of pool {index}, "
                    f"position {stop - 1} would take {held}"
                )
        for number in chunks:
            for index in range(len(self.pools)):
                self._map_new(seq, index, number)
        seq.extended = max(seq.extended, stop)

    def advance(self, lease: SlotLease, length: int) -> None:
        """Note that ``length`` positions are committed; chunks behind a window leave."""
        seq = self._of(lease)
        if not seq.length <= length <= seq.extended:
            raise StateError(
                f"slot {lease.slot} cannot move from {seq.length} to {length} positions "
                f"({seq.extended} have a place)"
            )
        if length > seq.length and seq.evicted:
            seq.exact = False
        if not seq.exact:
            for entries in seq.tables:
                for number in range(seq.length // CHUNK, chunks_for(length)):
                    entries[number].chunk.exact = False
        seq.length = length
        for index, pool in enumerate(self.pools):
            if pool.window is None:
                continue
            first = first_visible_chunk(pool.window, length)
            entries = seq.tables[index]
            while entries and (oldest := next(iter(entries))) < first:
                self._unmap(seq, index, oldest)

    def fork(self, lease: SlotLease, positions: int) -> SlotLease:
        """A second sequence with the same committed state; full chunks are shared."""
        source = self._of(lease)
        if source.evicted:
            raise StateError("a sequence with evicted chunks cannot be forked: recall them first")
        view = Checkpoint(
            source.length,
            lease.slot,
            tuple(
                {n: source.tables[i][n].chunk for n in self._visible(i, source.length)}
                for i in range(len(self.pools))
            ),
        )
        forked = self.open(positions, view)
        self._of(forked).exact = source.exact
        return forked

    def release(self, lease: SlotLease) -> None:
        """End the lease: references drop, the slot's epoch moves on."""
        seq = self._of(lease)
        for index, entries in enumerate(seq.tables):
            for number in list(entries):
                self._forget(seq, index, number)
        del self._sequences[lease.slot]
        self._epochs[lease.slot] += 1
        self._free_slots.append(lease.slot)

    # -- checkpoints --------------------------------------------------------------------------

    def checkpoint(self, lease: SlotLease, position: int) -> Checkpoint:
        """Hold the state after ``position`` positions.

        At the committed length the recurrent state is copied now; at a later position, inside the
        slice about to run, the caller asks the step to store it in ``Checkpoint.slot``.
        """
        seq = self._of(lease)
        if not seq.length <= position <= seq.extended:
            raise StateError(
                f"position {position} lies outside {seq.length}..{seq.extended} of slot "
                f"{lease.slot}"
            )
        if not self.can_checkpoint(lease, position):
            raise PoolExhausted(f"no checkpoint can be taken at position {position}")
        slot = self._free_checkpoints.pop() if self.recurrent else DUMMY
        chunks = tuple(
            {n: seq.tables[i][n].chunk for n in self._visible(i, position)}
            for i in range(len(self.pools))
        )
        for held in chunks:
            for chunk in held.values():
                self._hold(chunk)
        if self.recurrent and position == seq.length:
            self._operations.append(CopyRecurrent(lease.slot, slot))
        made = Checkpoint(position, slot, chunks)
        self._checkpoints.append(made)
        return made

    def drop_checkpoint(self, checkpoint: Checkpoint) -> None:
        if not checkpoint.live:
            raise StateError("the checkpoint was dropped before")
        checkpoint.live = False
        self._checkpoints.remove(checkpoint)
        if checkpoint.slot != DUMMY:
            self._free_checkpoints.append(checkpoint.slot)
        for index, held in enumerate(checkpoint.chunks):
            for chunk in held.values():
                self._drop(index, chunk, resident=True)

    # -- paging -------------------------------------------------------------------------------

    def evictable(self, lease: SlotLease, pool: int = 0) -> range:
        """Sealed chunks between those that the pool's rule protects."""
        length, rule = self._of(lease).length, self.rules[pool]
        if rule.window is not None:
            return range(0)
        stop = min(length // CHUNK, chunks_for(length) - rule.tail)
        return range(rule.sink, max(rule.sink, stop))

    def evict(self, lease: SlotLease, chunk: int, pool: int = 0) -> None:
        """Take a sealed chunk out of one table. Its bytes are kept if nobody else sees them."""
        seq = self._of(lease)
        entry = seq.tables[pool].get(chunk)
        if self.pools[pool].window is not None:
            raise StateError("chunks of a windowed pool leave by themselves")
        if entry is None or not entry.resident:
            raise StateError(f"chunk {chunk} of slot {lease.slot} is not resident")
        if (chunk + 1) * CHUNK > seq.length:
            raise StateError(f"chunk {chunk} of slot {lease.slot} is still being written")
        if chunk not in self.evictable(lease, pool):
            rule = self.rules[pool]
            raise StateError(
                f"chunk {chunk} of slot {lease.slot} is protected: the first {rule.sink} and the "
                f"last {rule.tail} chunks stay"
            )
        entry.resident = False
        seq.evicted += 1
        self._operations.append(UnmapChunk(pool, lease.slot, chunk))
        self._unref(pool, entry.chunk)

    def recall(self, lease: SlotLease, chunk: int, pool: int = 0) -> None:
        """Bring an evicted chunk back, from a block another holder sees or from its kept bytes."""
        seq = self._of(lease)
        entry = seq.tables[pool].get(chunk)
        if entry is None or entry.resident:
            raise StateError(f"chunk {chunk} of slot {lease.slot} is not evicted")
        held = entry.chunk
        if held.refs == 0:
            if self.available(pool) < 1:
                raise PoolExhausted(f"no block for chunk {chunk} of slot {lease.slot}")
            held.block = self.pools[pool].free.pop()
            self._operations.append(LoadBlock(pool, held.identity, held.block))
        held.refs += 1
        entry.resident = True
        seq.evicted -= 1
        self._operations.append(MapChunk(pool, lease.slot, chunk, held.block))

    # -- plan ---------------------------------------------------------------------------------

    def take_operations(self) -> tuple[StateOperation, ...]:
        """What has to happen to the tensors before the next step, in order."""
        taken = tuple(self._operations)
        self._operations.clear()
        return taken

    def check_integrity(self) -> None:
        """Recount everything; raises :class:`StateError` at the first disagreement."""
        held = list(self._sequences.values())
        for index, pool in enumerate(self.pools):
            check_books(index, pool, held, self._checkpoints)
            require(self.available(index) >= 0, f"promises of pool {index} are covered")
        slots = sorted(list(self._sequences) + self._free_slots)
        require(slots == list(range(1, self.limits.slots + 1)), "slots")
        if self.recurrent:
            places = sorted([c.slot for c in self._checkpoints] + self._free_checkpoints)
            first = self.limits.slots + 1
            require(
                places == list(range(first, first + self.limits.checkpoints)), "checkpoint slots"
            )

    # -- inside -------------------------------------------------------------------------------

    def _of(self, lease: SlotLease) -> Sequence:
        if not self.is_current(lease):
            raise StateError(f"lease of slot {lease.slot}, epoch {lease.epoch} is over")
        return self._sequences[lease.slot]

    def _promise(self, pool: int, positions: int) -> int:
        return blocks_for_sequence(self.pools[pool].window, positions, self.limits.step_rows)

    def _outstanding(self, seq: Sequence, pool: int) -> int:
        if self.pools[pool].window is None:
            return seq.promised[pool] - chunks_for(seq.extended)
        return max(0, seq.promised[pool] - len(seq.tables[pool]))

    def _visible(self, pool: int, position: int) -> range:
        """Chunks that the row at ``position`` may see below itself."""
        return visible_chunks(self.pools[pool].window, position)

    def _chunks(self, pool: int) -> list[Chunk]:
        found: dict[int, Chunk] = {}
        for seq in self._sequences.values():
            for entry in seq.tables[pool].values():
                if entry.resident:
                    found[entry.chunk.identity] = entry.chunk
        for checkpoint in self._checkpoints:
            for chunk in checkpoint.chunks[pool].values():
                found[chunk.identity] = chunk
        return list(found.values())

    def _restore(self, seq: Sequence, start: Checkpoint) -> None:
        for index, held in enumerate(start.chunks):
            for number in sorted(held):
                chunk = held[number]
                if (number + 1) * CHUNK <= start.length:
                    self._hold(chunk)
                    seq.tables[index][number] = Entry(chunk)
                    self._operations.append(MapChunk(index, seq.lease.slot, number, chunk.block))
                else:
                    self._map_new(seq, index, number)
                    target = seq.tables[index][number].chunk.block
                    self._operations.append(CopyBlock(index, chunk.block, target))
        seq.length = seq.extended = start.length
        if self.recurrent:
            self._operations.append(CopyRecurrent(start.slot, seq.lease.slot))

    def _map_new(self, seq: Sequence, pool: int, number: int) -> None:
        free = self.pools[pool].free
        if not free:
            raise PoolExhausted(f"pool {pool} has no free block for slot {seq.lease.slot}")
        chunk = Chunk(self._next_identity, free.pop(), exact=seq.exact)
        self._next_identity += 1
        self._hold(chunk)
        seq.tables[pool][number] = Entry(chunk)
        self._operations.append(MapChunk(pool, seq.lease.slot, number, chunk.block))

    def _unmap(self, seq: Sequence, pool: int, number: int) -> None:
        self._operations.append(UnmapChunk(pool, seq.lease.slot, number))
        self._forget(seq, pool, number)

    def _forget(self, seq: Sequence, pool: int, number: int) -> None:
        entry = seq.tables[pool].pop(number)
        self._drop(pool, entry.chunk, resident=entry.resident)

    def _hold(self, chunk: Chunk) -> None:
        chunk.refs += 1
        chunk.owners += 1

    def _drop(self, pool: int, chunk: Chunk, *, resident: bool) -> None:
        chunk.owners -= 1
        if resident:
            self._unref(pool, chunk)
        if chunk.owners == 0 and chunk.saved:
            self._operations.append(DropSaved(chunk.identity))
            chunk.saved = False

    def _unref(self, pool: int, chunk: Chunk) -> None:
        chunk.refs -= 1
        if chunk.refs == 0:
            if chunk.owners and not chunk.saved:
                # Somebody evicted it while others still saw it: the last of them leaves the bytes.
                self._operations.append(SaveBlock(pool, chunk.block, chunk.identity))
                chunk.saved = True
            self.pools[pool].free.append(chunk.block)
            chunk.block = DUMMY
