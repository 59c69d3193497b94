"""Slots of sequences, and their tables of chunks in every pool. Torch-free.

Chunks are shared by reference: forks and checkpoints hold references, and only the sequence that
started a chunk appends to it. Pools follow ``StatePlan.windows``. In the pool of full attention a
sequence keeps every chunk that is not evicted; in a windowed pool a chunk leaves when the window
has passed it.

Admission is a promise: ``open`` reserves blocks for all positions a sequence may reach, so a
running sequence never fails for lack of room.
"""

from __future__ import annotations

from kinfolk.errors import PoolExhausted, StateError
from kinfolk.plans import PoolRule, StateLimits
from kinfolk.state.block_pool import BlockPool
from kinfolk.state.chunks import Chunk, Entry, SequenceState, SlotLease
from kinfolk.state.geometry import (
    blocks_for_sequence,
    chunks_for,
    first_visible_chunk,
    visible_chunks,
)
from kinfolk.state.host_rows import HostLayout, HostRows
from kinfolk.state.operations import (
    ClearSlot,
    CopyBlock,
    CopyRecurrent,
    LoadBlock,
    MapChunk,
    OperationLog,
    UnmapChunk,
)
from kinfolk.types import CHUNK_POSITIONS, DUMMY

ChunkTables = tuple[dict[int, Chunk], ...]
"""For each pool: chunks by their number in a sequence."""


class SequenceTables:
    """The sequences that hold a slot. Owns the log of operations, and the pools that write to it.

    ``free`` lists free slots; the last one is leased next.
    """

    def __init__(
        self,
        windows: tuple[int | None, ...],
        limits: StateLimits,
        *,
        recurrent: bool,
        rules: tuple[PoolRule, ...] = (),
        host: HostRows | None = None,
    ) -> None:
        if len(limits.blocks) != len(windows):
            raise StateError(f"{len(windows)} pools need {len(windows)} sizes, got {limits.blocks}")
        self.limits = limits
        self.rules = rules or tuple(PoolRule(window, sink=0, tail=0) for window in windows)
        self.recurrent = recurrent
        self.operations = OperationLog()
        self.host = host or HostRows(HostLayout.counting_rows(len(windows)))
        self.pools = tuple(
            BlockPool(index, size, window, self.operations, self.host)
            for index, (size, window) in enumerate(zip(limits.blocks, windows, strict=True))
        )
        self._windowed = tuple(pool for pool in self.pools if pool.window is not None)
        self.free = list(range(limits.slots, DUMMY, -1))
        self.sequences: dict[int, SequenceState] = {}
        self._epochs = [0] * (limits.slots + 1)
        self._next_identity = 1

    # -- questions ----------------------------------------------------------------------------

    def available(self, pool: int) -> int:
        """Free blocks that are promised to no sequence and no holder of a shared chunk."""
        pending = sum(self._outstanding(seq, pool) for seq in self.sequences.values())
        return self.pools[pool].unshared - pending

    def needed(self, positions: int, shared: int = 0) -> tuple[int, ...]:
        """Blocks of each pool that a sequence of ``positions`` positions would take.

        ``shared`` chunks of full attention are on the device and will be shared. In a windowed pool
        sharing saves nothing: each holder needs a block when the window moves on.
        """
        return tuple(
            promised - (shared if pool.window is None else 0)
            for promised, pool in zip(self._promise(positions), self.pools, strict=True)
        )

    def fits_ever(self, positions: int) -> bool:
        """Whether such a sequence could be opened if there were no other."""
        return all(
            need <= pool.size for need, pool in zip(self.needed(positions), self.pools, strict=True)
        )

    def can_open(self, positions: int, shared: int = 0) -> bool:
        return bool(self.free) and all(
            need <= self.available(index)
            for index, need in enumerate(self.needed(positions, shared))
        )

    def sequence(self, lease: SlotLease) -> SequenceState:
        """The sequence of a lease; raises :class:`StateError` when the lease is over."""
        held = self.sequences.get(lease.slot)
        if held is None or (held.lease is not lease and held.lease != lease):
            raise StateError(f"lease of slot {lease.slot}, epoch {lease.epoch} is over")
        return held

    def length(self, lease: SlotLease) -> int:
        """Committed positions."""
        return self.sequence(lease).length

    def table(self, lease: SlotLease, pool: int) -> list[tuple[int, int]]:
        """Resident (chunk, block) pairs in logical order."""
        entries = self.sequence(lease).tables[pool]
        return [(n, entries[n].chunk.block) for n in sorted(entries) if entries[n].resident]

    def visible(self, seq: SequenceState, position: int) -> ChunkTables:
        """The chunks of each pool that the row at ``position`` attends to."""
        return tuple(
            {n: table[n].chunk for n in visible_chunks(pool.window, position)}
            for table, pool in zip(seq.tables, self.pools, strict=True)
        )

    # -- sequences ----------------------------------------------------------------------------

    def open(
        self, positions: int, start: int = 0, shared: int = 0, slot: int | None = None
    ) -> SlotLease:
        """Lease a slot with room for ``positions`` positions, of which ``start`` will be there at
        once: ``shared`` full chunks of them in blocks of others. ``slot`` is the free one to lease,
        ``None`` = any.

        Raises :class:`PoolExhausted` when ``can_open`` is false.
        """
        if start > positions:
            raise StateError(
                f"a sequence of {positions} positions cannot start from {start} of them"
            )
        if not self.can_open(positions, shared):
            room = ", ".join(str(self.available(i)) for i in range(len(self.pools)))
            raise PoolExhausted(
                f"no room for a sequence of {positions} positions: it needs "
                f"{self.needed(positions, shared)} blocks, available {room or 'none'}, "
                f"free slots {len(self.free)}"
            )
        if slot is None:
            slot = self.free.pop()
        else:
            self.free.remove(slot)
        self._epochs[slot] += 1
        seq = SequenceState(
            SlotLease(slot, self._epochs[slot]),
            self._promise(positions),
            tuple({} for _ in self.pools),
        )
        self.sequences[slot] = seq
        self.operations.append(ClearSlot(slot))
        return seq.lease

    def share(self, lease: SlotLease, length: int, chunks: ChunkTables) -> None:
        """Start an empty sequence from ``length`` positions in ``chunks``.

        Full chunks are shared, a partial one is copied. What is not on the device is loaded.
        """
        seq = self.sequence(lease)
        for pool, held in zip(self.pools, chunks, strict=True):
            for number in sorted(held):
                chunk = held[number]
                if (number + 1) * CHUNK_POSITIONS <= length:
                    pool.hold(chunk)
                    self._map(seq, pool, number, chunk)
                    continue
                block, target = chunk.block, self._map_new(seq, pool, number).block
                self.operations.append(
                    LoadBlock(pool.index, chunk.identity, target)
                    if chunk.refs == 0
                    else CopyBlock(pool.index, block, target)
                )
        seq.length = seq.extended = length

    def extend(self, lease: SlotLease, stop: int) -> None:
        """Give every position below ``stop`` a place to be written to."""
        seq = self.sequence(lease)
        if stop <= chunks_for(seq.extended) * CHUNK_POSITIONS:
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
            for pool in self.pools:
                self._map_new(seq, pool, number)
        seq.extended = max(seq.extended, stop)

    def advance(self, lease: SlotLease, length: int) -> None:
        """Commit ``length`` positions; chunks behind a window leave."""
        seq = self.sequence(lease)
        if not seq.length <= length <= seq.extended:
            raise StateError(
                f"slot {lease.slot} cannot move from {seq.length} to {length} positions "
                f"({seq.extended} have a place)"
            )
        if length > seq.length and seq.evicted:
            seq.exact = False
        if not seq.exact:
            for entries in seq.tables:
                for number in range(seq.length // CHUNK_POSITIONS, chunks_for(length)):
                    entries[number].chunk.exact = False
        seq.length = length
        for pool in self._windowed:
            entries, first = seq.tables[pool.index], first_visible_chunk(pool.window, length)
            while entries and (oldest := next(iter(entries))) < first:
                self.operations.append(UnmapChunk(pool.index, lease.slot, oldest))
                entry = entries.pop(oldest)
                pool.release(entry.chunk, resident=entry.resident)

    def fork(self, lease: SlotLease, positions: int) -> SlotLease:
        """A second sequence with the same committed state; full chunks are shared."""
        source = self.sequence(lease)
        if source.evicted:
            raise StateError("a sequence with evicted chunks cannot be forked: recall them first")
        chunks = self.visible(source, source.length)
        forked = self.open(positions, source.length, source.length // CHUNK_POSITIONS)
        self.share(forked, source.length, chunks)
        if self.recurrent:
            self.operations.append(CopyRecurrent(lease.slot, forked.slot))
        self.sequence(forked).exact = source.exact
        return forked

    def release(self, lease: SlotLease) -> None:
        """End the lease: references drop, the slot's epoch moves on."""
        seq = self.sequence(lease)
        for pool, entries in zip(self.pools, seq.tables, strict=True):
            for entry in entries.values():
                pool.release(entry.chunk, resident=entry.resident)
            entries.clear()
        del self.sequences[lease.slot]
        self._epochs[lease.slot] += 1
        self.free.append(lease.slot)

    # -- eviction -----------------------------------------------------------------------------

    def evictable(self, lease: SlotLease, pool: int = 0) -> range:
        """Full chunks between those that the pool's rule protects."""
        length, rule = self.sequence(lease).length, self.rules[pool]
        if rule.window is not None:
            return range(0)
        stop = min(length // CHUNK_POSITIONS, chunks_for(length) - rule.tail)
        return range(rule.sink, max(rule.sink, stop))

    def evict(self, lease: SlotLease, chunk: int, pool: int = 0) -> None:
        """Take a full chunk out of one table; the last table to lose it saves its bytes."""
        seq = self.sequence(lease)
        entry = seq.tables[pool].get(chunk)
        if self.pools[pool].window is not None:
            raise StateError("chunks of a windowed pool leave by themselves")
        if entry is None or not entry.resident:
            raise StateError(f"chunk {chunk} of slot {lease.slot} is not resident")
        if (chunk + 1) * CHUNK_POSITIONS > seq.length:
            raise StateError(f"chunk {chunk} of slot {lease.slot} is still being written")
        if chunk not in self.evictable(lease, pool):
            rule = self.rules[pool]
            raise StateError(
                f"chunk {chunk} of slot {lease.slot} is protected: the first {rule.sink} and the "
                f"last {rule.tail} chunks stay"
            )
        if not self.pools[pool].fits_host(entry.chunk):
            raise PoolExhausted(
                f"no host memory for chunk {chunk} of slot {lease.slot}: {self.host.used_bytes} "
                "bytes are used; a checkpoint that is kept there must be dropped first"
            )
        entry.resident = False
        seq.evicted += 1
        self.operations.append(UnmapChunk(pool, lease.slot, chunk))
        self.pools[pool].unload(entry.chunk)

    def recall(self, lease: SlotLease, chunk: int, pool: int = 0) -> None:
        """Bring an evicted chunk back, from a block another holder sees or from its saved bytes."""
        seq = self.sequence(lease)
        entry = seq.tables[pool].get(chunk)
        if entry is None or entry.resident:
            raise StateError(f"chunk {chunk} of slot {lease.slot} is not evicted")
        if entry.chunk.refs == 0 and self.available(pool) < 1:
            raise PoolExhausted(f"no block for chunk {chunk} of slot {lease.slot}")
        self.pools[pool].load(entry.chunk)
        entry.resident = True
        seq.evicted -= 1
        self.operations.append(MapChunk(pool, lease.slot, chunk, entry.chunk.block))

    def new_identity(self) -> int:
        """A name for bytes that the host may keep: of a chunk, or of a checkpoint."""
        self._next_identity += 1
        return self._next_identity - 1

    # -- inside -------------------------------------------------------------------------------

    def _promise(self, positions: int) -> tuple[int, ...]:
        return tuple(
            blocks_for_sequence(pool.window, positions, self.limits.step_rows)
            for pool in self.pools
        )

    def _outstanding(self, seq: SequenceState, pool: int) -> int:
        """Blocks that were promised to a sequence and that it does not hold yet."""
        if self.pools[pool].window is None:
            return seq.promised[pool] - chunks_for(seq.extended)
        return max(0, seq.promised[pool] - len(seq.tables[pool]))

    def _map_new(self, seq: SequenceState, pool: BlockPool, number: int) -> Chunk:
        if not pool.free:
            raise PoolExhausted(f"pool {pool.index} has no free block for slot {seq.lease.slot}")
        chunk = pool.allocate(self.new_identity(), exact=seq.exact)
        self._map(seq, pool, number, chunk)
        return chunk

    def _map(self, seq: SequenceState, pool: BlockPool, number: int, chunk: Chunk) -> None:
        seq.tables[pool.index][number] = Entry(chunk)
        self.operations.append(MapChunk(pool.index, seq.lease.slot, number, chunk.block))
