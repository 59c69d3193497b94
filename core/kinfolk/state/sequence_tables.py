"""Slots of sequences, and their tables of chunks in every pool. Torch-free.

Chunks are shared by reference: forks and checkpoints hold references, and only the sequence that
started a chunk appends to it. Pools follow ``StatePlan.windows``. In the pool of full attention a
sequence keeps every chunk that is not evicted; in a windowed pool a chunk leaves when the window
has passed it.

Admission is a promise: ``open`` reserves blocks for all positions a sequence may reach, so a
running sequence never fails for lack of room. A paged sequence is promised fewer blocks, and host
memory for all of its chunks, where each is saved once, as soon as it is full.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from kinfolk.errors import PoolExhausted, StateError
from kinfolk.plans import PoolRule, StateLimits
from kinfolk.state.block_pool import BlockPool
from kinfolk.state.chunks import NO_DIGEST, Chunk, Entry, SequenceState, SlotLease
from kinfolk.state.digest_places import DigestPlaces
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
    CopyQueries,
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

    ``free`` lists free slots; the last one is leased next. ``query_places`` are free places for the
    queries of suspended sequences.
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
        self.digests = (
            None if limits.scored is None else DigestPlaces(limits.digests, self.operations)
        )
        self.query_places = list(range(limits.slots + 1, limits.query_slots))
        self.pools = tuple(
            BlockPool(
                *(index, size, window, self.operations, self.host),
                digests=self.digests if window is None else None,
            )
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

    def needed(
        self, positions: int, shared: int = 0, resident: int | None = None
    ) -> tuple[int, ...]:
        """Blocks of each pool that a sequence of ``positions`` positions would take.

        ``shared`` chunks of full attention are on the device and will be shared. In a windowed pool
        sharing saves nothing: each holder needs a block when the window moves on. Neither does it
        for a sequence that is paged, with at most ``resident`` chunks on the device.
        """
        return tuple(
            promised - (shared if pool.window is None and resident is None else 0)
            for promised, pool in zip(self._promise(positions, resident), self.pools, strict=True)
        )

    def host_pages(self, positions: int, resident: int | None, saved: int = 0) -> int:
        """Pages of host memory that such a sequence is promised, for all of its chunks but
        ``saved``, which have theirs."""
        if resident is None:
            return 0
        pages = sum(pool.row_pages for pool in self.pools if pool.window is None)
        return (chunks_for(positions) - saved) * pages

    def fits_ever(self, positions: int, resident: int | None = None) -> bool:
        """Whether such a sequence could be opened if there were no other."""
        most, needed = self.host.pages, self.needed(positions, 0, resident)
        return all(need <= pool.size for need, pool in zip(needed, self.pools, strict=True)) and (
            most is None or self.host_pages(positions, resident) <= most
        )

    def can_open(
        self, positions: int, shared: int = 0, resident: int | None = None, saved: int = 0
    ) -> bool:
        return (
            bool(self.free)
            and all(
                need <= self.available(index)
                for index, need in enumerate(self.needed(positions, shared, resident))
            )
            and self.fits_host(positions, resident, saved)
        )

    def fits_host(self, positions: int, resident: int | None, saved: int = 0) -> bool:
        """Whether the host has room for the chunks of such a sequence."""
        pages = self.host_pages(positions, resident, saved)
        return pages == 0 or self.host.fits(pages)

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
        self,
        positions: int,
        start: int = 0,
        shared: int = 0,
        slot: int | None = None,
        *,
        resident: int | None = None,
        saved: int = 0,
    ) -> SlotLease:
        """Lease a slot with room for ``positions`` positions, of which ``start`` will be there at
        once: ``shared`` full chunks of them in blocks of others. ``slot`` is the free one to lease,
        ``None`` = any. With ``resident`` the sequence is paged: it has that many blocks of full
        attention at most, and a row of host memory for each of its chunks, which ``saved`` full
        chunks that it shares have already.

        Raises :class:`PoolExhausted` when ``can_open`` is false.
        """
        if start > positions:
            raise StateError(
                f"a sequence of {positions} positions cannot start from {start} of them"
            )
        if not self.can_open(positions, shared, resident, saved):
            room = ", ".join(str(self.available(i)) for i in range(len(self.pools)))
            pages = self.host_pages(positions, resident, saved)
            raise PoolExhausted(
                f"no room for a sequence of {positions} positions: it needs "
                f"{self.needed(positions, shared, resident)} blocks, available {room or 'none'}, "
                f"free slots {len(self.free)}"
                + (f", and {pages} pages of host memory" if pages else "")
            )
        if slot is None:
            slot = self.free.pop()
        else:
            self.free.remove(slot)
        self._epochs[slot] += 1
        seq = SequenceState(
            SlotLease(slot, self._epochs[slot]),
            self._promise(positions, resident),
            tuple({} for _ in self.pools),
            np.full(chunks_for(positions), NO_DIGEST, np.int32),
            resident=resident,
        )
        if seq.paged and any(pool.window is None for pool in self.pools):
            seq.unsaved = chunks_for(positions)
            self.host.promised += self.host_pages(positions, resident)
        self.sequences[slot] = seq
        self.operations.append(ClearSlot(slot))
        return seq.lease

    def share(
        self,
        lease: SlotLease,
        length: int,
        chunks: ChunkTables,
        away: Collection[int] = (),
    ) -> None:
        """Start an empty sequence from ``length`` positions in ``chunks``.

        Full chunks are shared, a partial one is copied. What is not on the device is loaded, but
        for the full chunks of full attention that are ``away``: a paged sequence starts without.
        """
        seq = self.sequence(lease)
        for pool, held in zip(self.pools, chunks, strict=True):
            full = [n for n in sorted(held) if (n + 1) * CHUNK_POSITIONS <= length]
            if seq.paged and pool.window is None:
                self._share_paged(seq, pool, {n: held[n] for n in full}, away)
            else:
                for number in full:  # before any is mapped: loads in a row are one copy
                    pool.hold(held[number])
                for number in full:
                    self._map(seq, pool, number, held[number])
            for number in sorted(held.keys() - set(full)):
                self._copy(seq, pool, number, held[number])
        seq.length = seq.extended = seq.started = length

    def _share_paged(
        self,
        seq: SequenceState,
        pool: BlockPool,
        chunks: Mapping[int, Chunk],
        away: Collection[int],
    ) -> None:
        """Start a paged sequence with full chunks, without those that are ``away``."""
        for number, chunk in chunks.items():
            if number in away:
                pool.hold_away(chunk)
                seq.tables[pool.index][number] = Entry(chunk, resident=False)
                seq.evicted += 1
            else:
                pool.hold(chunk, paged=True)
                self._map(seq, pool, number, chunk)
                pool.seal(chunk)
            self._saved(seq, pool)
            self._digest(seq, pool, number)

    def extend(self, lease: SlotLease, stop: int) -> None:
        """Give every position below ``stop`` a place to be written to."""
        seq = self.sequence(lease)
        if stop <= chunks_for(seq.extended) * CHUNK_POSITIONS:
            seq.extended = max(seq.extended, stop)
            return
        chunks = range(chunks_for(seq.extended), chunks_for(stop))
        for index in range(len(self.pools)):
            held = len(chunks) + self._held(seq, index)
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
        if seq.paged:
            self._seal(seq, length)
        seq.length = length
        for pool in self._windowed:
            entries, first = seq.tables[pool.index], first_visible_chunk(pool.window, length)
            while entries and (oldest := next(iter(entries))) < first:
                self.operations.append(UnmapChunk(pool.index, lease.slot, oldest))
                entry = entries.pop(oldest)
                pool.release(entry.chunk, resident=entry.resident)

    def fork(self, lease: SlotLease, positions: int) -> SlotLease:
        """A second sequence with the same committed state; full chunks are shared. That of a paged
        sequence is paged, and sees the chunks that it sees."""
        source = self.sequence(lease)
        chunks, full = self.visible(source, source.length), source.length // CHUNK_POSITIONS
        saved = full if source.paged else 0
        forked = self.open(positions, source.length, full, resident=source.resident, saved=saved)
        self.share(forked, source.length, chunks, self.away(lease) if source.evicted else ())
        if self.recurrent:
            self.operations.append(CopyRecurrent(lease.slot, forked.slot))
        if source.paged and self.digests is not None:
            self.operations.append(CopyQueries(lease.slot, forked.slot))
            self.sequence(forked).started = source.started
        self.sequence(forked).exact = source.exact
        return forked

    def release(self, lease: SlotLease) -> None:
        """End the lease: references drop, the slot's epoch moves on."""
        seq = self.sequence(lease)
        for pool, entries in zip(self.pools, seq.tables, strict=True):
            paged = seq.paged and pool.window is None
            for entry in entries.values():
                held = entry.resident or entry.fetched
                pool.release(entry.chunk, resident=held, paged=paged)
            entries.clear()
            if paged:
                self.host.promised -= seq.unsaved * pool.row_pages
        del self.sequences[lease.slot]
        self._epochs[lease.slot] += 1
        self.free.append(lease.slot)

    # -- eviction -----------------------------------------------------------------------------

    def evictable(self, lease: SlotLease, pool: int = 0, needed: int = 0) -> range:
        """Full chunks between those that the pool's rule protects. The last ones are those of
        ``needed`` chunks, if the next step begins more than there are."""
        length, rule = self.sequence(lease).length, self.rules[pool]
        if rule.window is not None:
            return range(0)
        known = max(chunks_for(length), needed)
        stop = min(length // CHUNK_POSITIONS, known - rule.tail)
        return range(rule.sink, max(rule.sink, stop))

    def evict(self, lease: SlotLease, *chunks: int, pool: int = 0, needed: int = 0) -> None:
        """Take full chunks of a paged sequence out of its table. The host has their bytes.
        ``needed`` is that of :meth:`evictable`."""
        seq, books = self.sequence(lease), self.pools[pool]
        if books.window is not None:
            raise StateError("chunks of a windowed pool leave by themselves")
        if not seq.paged:
            raise StateError(
                f"slot {lease.slot} was opened without a number of resident chunks: all of them "
                "stay on the device"
            )
        entries, evictable = seq.tables[pool], self.evictable(lease, pool, needed)
        for chunk in chunks:
            entry = entries.get(chunk)
            if entry is None or not entry.resident:
                raise StateError(f"chunk {chunk} of slot {lease.slot} is not resident")
            if chunk not in evictable:
                raise StateError(self._why_it_stays(seq, chunk, pool))
            entry.resident = False
            seq.evicted += 1
            self.operations.append(UnmapChunk(pool, lease.slot, chunk))
            books.unload(entry.chunk, paged=True)

    def away(self, lease: SlotLease, pool: int = 0) -> frozenset[int]:
        """Chunks of a sequence that are not in its table."""
        entries = self.sequence(lease).tables[pool]
        return frozenset(number for number, entry in entries.items() if not entry.resident)

    def digest_places(self, lease: SlotLease) -> npt.NDArray[np.int32]:
        """The place of the compressed keys of each full chunk of a paged sequence, -1 = it has
        none."""
        seq = self.sequence(lease)
        return seq.digests[: seq.length // CHUNK_POSITIONS].copy()

    def fetch(self, lease: SlotLease, *chunks: int, pool: int = 0) -> None:
        """Give evicted chunks blocks again, those of other holders or some of the sequence's own to
        which their bytes are loaded. They are in the table from :meth:`recall` on; until then no
        step waits for the bytes."""
        seq, books = self.sequence(lease), self.pools[pool]
        entries, room = seq.tables[pool], seq.promised[pool] - self._held(seq, pool)
        for number, chunk in enumerate(chunks):
            entry = entries.get(chunk)
            if entry is None or entry.resident or entry.fetched:
                raise StateError(f"chunk {chunk} of slot {lease.slot} is not evicted")
            if number >= room:
                raise PoolExhausted(
                    f"no block for chunk {chunk} of slot {lease.slot}: all {seq.promised[pool]} "
                    "that it was promised are in use; evict another chunk first"
                )
            books.load(entry.chunk, paged=True)
            entry.fetched = True
            seq.fetched += 1

    def recall(self, lease: SlotLease, *chunks: int, pool: int = 0) -> None:
        """Enter chunks that were evicted into the table again; they are fetched now if they were
        not before."""
        seq, books = self.sequence(lease), self.pools[pool]
        entries = seq.tables[pool]
        for chunk in chunks:
            entry = entries.get(chunk)
            if entry is None or not entry.fetched:
                self.fetch(lease, chunk, pool=pool)
                entry = entries[chunk]
            entry.fetched, entry.resident = False, True
            seq.fetched -= 1
            seq.evicted -= 1
            self.operations.append(MapChunk(pool, lease.slot, chunk, entry.chunk.block))
            self._digest(seq, books, chunk)

    def new_identity(self) -> int:
        """A name for bytes that the host may keep: of a chunk, or of a checkpoint."""
        self._next_identity += 1
        return self._next_identity - 1

    # -- inside -------------------------------------------------------------------------------

    def _why_it_stays(self, seq: SequenceState, chunk: int, pool: int) -> str:
        """Why a chunk on the device is not among :meth:`evictable`."""
        named, rule = f"chunk {chunk} of slot {seq.lease.slot}", self.rules[pool]
        if (chunk + 1) * CHUNK_POSITIONS > seq.length:
            return f"{named} is still being written"
        return f"{named} is protected: the first {rule.sink} and the last {rule.tail} chunks stay"

    def _promise(self, positions: int, resident: int | None) -> tuple[int, ...]:
        return tuple(
            blocks_for_sequence(pool.window, positions, self.limits.step_rows, resident)
            for pool in self.pools
        )

    def _held(self, seq: SequenceState, pool: int) -> int:
        """Blocks of a pool that the table of a sequence refers to."""
        absent = 0 if self.pools[pool].window is not None else seq.evicted - seq.fetched
        return len(seq.tables[pool]) - absent

    def _outstanding(self, seq: SequenceState, pool: int) -> int:
        """Blocks that were promised to a sequence and that it does not hold yet."""
        return max(0, seq.promised[pool] - self._held(seq, pool))

    def _seal(self, seq: SequenceState, length: int) -> None:
        """Save the chunks that are full with ``length`` positions and were not before."""
        for pool in self.pools:
            if pool.window is None:
                for number in range(seq.length // CHUNK_POSITIONS, length // CHUNK_POSITIONS):
                    pool.seal(seq.tables[pool.index][number].chunk)
                    self._saved(seq, pool)
                    self._digest(seq, pool, number)

    def _digest(self, seq: SequenceState, pool: BlockPool, number: int) -> None:
        """Compress the keys of a full chunk of a paged sequence, if chunks are scored by them."""
        entries = seq.tables[pool.index]
        if self.digests is None or seq.digests[number] != NO_DIGEST or 0 not in entries:
            return
        chunk = entries[number].chunk
        pool.digest(chunk, entries[0].chunk)
        seq.digests[number] = chunk.digest

    def _saved(self, seq: SequenceState, pool: BlockPool) -> None:
        """A full chunk of a paged sequence has its row of host memory, which was promised."""
        seq.unsaved -= 1
        self.host.promised -= pool.row_pages

    def _copy(self, seq: SequenceState, pool: BlockPool, number: int, chunk: Chunk) -> None:
        """Start with a copy of a chunk that is not full."""
        block, target = chunk.block, self._new(seq, pool, number)
        self.operations.append(
            LoadBlock(pool.index, chunk.identity, target.block)
            if chunk.refs == 0
            else CopyBlock(pool.index, block, target.block)
        )
        self._map(seq, pool, number, target)

    def _new(self, seq: SequenceState, pool: BlockPool, number: int) -> Chunk:
        if not pool.free:
            raise PoolExhausted(
                f"pool {pool.index} has no free block for chunk {number} of slot {seq.lease.slot}"
            )
        paged = seq.paged and pool.window is None
        return pool.allocate(self.new_identity(), exact=seq.exact, paged=paged)

    def _map_new(self, seq: SequenceState, pool: BlockPool, number: int) -> Chunk:
        chunk = self._new(seq, pool, number)
        self._map(seq, pool, number, chunk)
        return chunk

    def _map(self, seq: SequenceState, pool: BlockPool, number: int, chunk: Chunk) -> None:
        seq.tables[pool.index][number] = Entry(chunk)
        self.operations.append(MapChunk(pool.index, seq.lease.slot, number, chunk.block))
