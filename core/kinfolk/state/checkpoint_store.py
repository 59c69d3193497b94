"""Checkpoints: chunks that they hold, and slots that keep their recurrent state. Torch-free.

A checkpoint is resident, which costs recurrent state and blocks of the device, or demoted, which
costs host memory. A chunk that several own is counted once in either place.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence

from kinfolk.errors import PoolExhausted, StateError
from kinfolk.state.chunks import Checkpoint, Chunk, Pin, SequenceState, SlotLease
from kinfolk.state.geometry import chunks_for, visible_chunks
from kinfolk.state.operations import (
    CopyQueries,
    CopyRecurrent,
    DropSaved,
    LoadRecurrent,
    SaveRecurrent,
    StoreRecurrent,
)
from kinfolk.state.sequence_tables import SequenceTables
from kinfolk.types import CHUNK_POSITIONS, DUMMY


class CheckpointStore:
    """Takes checkpoints of sequences, starts sequences from them, demotes and drops them.

    ``free`` lists recurrent slots behind those of the sequences; the last one is used next. One
    whose state is being copied to host memory comes first, since who writes it waits for the copy.
    ``spare`` of them stay free, so that there is another one. ``demotions`` counts the checkpoints
    that left the device.
    """

    def __init__(self, tables: SequenceTables) -> None:
        limits = tables.limits
        self.recurrent = tables.recurrent
        self.pools = tables.pools
        self.free = deque(range(limits.recurrent_slots - 1, limits.slots, -1))
        self.spare = limits.spare_slots
        self.live: list[Checkpoint] = []
        self.pins: list[Pin] = []
        self.host = tables.host
        self.operations = tables.operations
        self.demotions = 0
        self._tables = tables

    @property
    def any_chunk(self) -> bool:
        """Whether keys and values are all there is: then a sequence may start behind any chunk."""
        return not self.recurrent and all(pool.window is None for pool in self.pools)

    @property
    def has_slot(self) -> bool:
        """Whether there is a slot for one more checkpoint."""
        return len(self.free) > self.spare

    def can_take(
        self, lease: SlotLease, position: int, dropping: Sequence[Checkpoint] = ()
    ) -> bool:
        """A checkpoint needs exact chunks, a free slot, and room for the chunks it will hold; once
        ``dropping`` are dropped or demoted there is more of both. That of a paged sequence which
        missed something needs host memory instead of room on the device."""
        seq = self._tables.sequence(lease)
        if self.is_away(lease):
            slots = self.has_slot or not self.needs_slot(lease, position)
            return slots and self._fits_away(seq, position, dropping)
        dropping = [held for held in dropping if held.resident]
        if not seq.exact or (self.recurrent and not self.has_slot and not dropping):
            return False
        for index, pool in enumerate(self.pools):
            wanted = visible_chunks(pool.window, position)
            entries = seq.tables[index]
            if any(n not in entries or not entries[n].resident for n in wanted):
                return False
            gone = [chunk for held in dropping for chunk in held.chunks[index].values()]
            left = {chunk.identity: chunk.refs - chunk.movable for chunk in gone}
            for chunk in gone:
                left[chunk.identity] -= 1
            room = self._tables.available(index) + sum(count == 0 for count in left.values())
            # Who may give up a chunk that the checkpoint keeps will need a block of its own.
            chunks = [entries[n].chunk for n in wanted]
            if sum(left.get(c.identity, c.refs - c.movable) == 0 for c in chunks) > room:
                return False
        return True

    def take(self, lease: SlotLease, position: int) -> Checkpoint:
        """Hold the state after ``position`` positions.

        At the committed length the recurrent state is copied now; at a later position, inside the
        slice about to run, the caller asks the step to store it in ``Checkpoint.slot``. Until then
        the checkpoint must not be demoted. An earlier one must be behind a full chunk, of a family
        that has nothing but keys and values.
        """
        seq = self._tables.sequence(lease)
        passed = self.any_chunk and position > 0 and position % CHUNK_POSITIONS == 0
        if not (passed or seq.length <= position) or position > seq.extended:
            raise StateError(
                f"position {position} lies outside {seq.length}..{seq.extended} of slot "
                f"{lease.slot}"
            )
        if not self.can_take(lease, position):
            raise PoolExhausted(f"no checkpoint can be taken at position {position}")
        if self.is_away(lease):
            return self._take_away(seq, position)
        slot = self.free.pop() if self.recurrent else DUMMY
        chunks = self._tables.visible(seq, position)
        for pool, held in zip(self.pools, chunks, strict=True):
            for chunk in held.values():
                pool.keep(chunk)
        if self.recurrent:
            self.operations.append(
                CopyRecurrent(lease.slot, slot) if position == seq.length else StoreRecurrent(slot)
            )
        checkpoint = Checkpoint(position, slot, chunks, identity=self._tables.new_identity())
        self.live.append(checkpoint)
        return checkpoint

    def shared(
        self, checkpoint: Checkpoint, length: int | None = None, *, alone: bool = False
    ) -> int:
        """Full chunks of full attention that are on the device, where a sequence that starts from
        the checkpoint, or from its first ``length`` positions, shares them; ``alone``: that still
        are when all other checkpoints go."""
        length = checkpoint.length if length is None else length
        return sum(
            chunk.refs - chunk.movable > (chunk.kept if alone and not checkpoint.resident else 0)
            and (number + 1) * CHUNK_POSITIONS <= length
            for pool, held in zip(self.pools, checkpoint.chunks, strict=True)
            if pool.window is None
            for number, chunk in held.items()
        )

    def saved(self, checkpoint: Checkpoint, length: int | None = None) -> int:
        """Full chunks of full attention that have a row of host memory, which a paged sequence that
        starts from the checkpoint, or from its first ``length`` positions, shares."""
        length = checkpoint.length if length is None else length
        return sum(
            chunk.charged and (number + 1) * CHUNK_POSITIONS <= length
            for pool, held in zip(self.pools, checkpoint.chunks, strict=True)
            if pool.window is None
            for number, chunk in held.items()
        )

    def restore(
        self,
        checkpoint: Checkpoint,
        positions: int,
        length: int | None = None,
        slot: int | None = None,
        *,
        resident: int | None = None,
        away: Collection[int] = (),
    ) -> SlotLease:
        """A new sequence with room for ``positions`` positions that starts from a checkpoint, or
        from its first ``length`` positions: without recurrent state and windows. ``slot`` is the
        free one to lease, ``None`` = any. With ``resident`` it is paged, and starts without the
        chunks that are ``away``. What starts from a checkpoint that is not exact is not exact.
        """
        if not checkpoint.live:
            raise StateError("a sequence cannot start from a checkpoint that was dropped")
        length = checkpoint.length if length is None else length
        chunks = checkpoint.chunks
        if length != checkpoint.length:
            windowed = any(pool.window is not None for pool in self.pools)
            if self.recurrent or windowed or not 0 < length < checkpoint.length:
                raise StateError(
                    f"a checkpoint after {checkpoint.length} positions has no state after {length}"
                )
            shared = chunks_for(length)
            chunks = tuple({n: each for n, each in held.items() if n < shared} for held in chunks)
        lease = self._tables.open(
            positions,
            length,
            self.shared(checkpoint, length),
            slot,
            resident=resident,
            saved=self.saved(checkpoint, length),
        )
        self._tables.share(lease, length, chunks, away)
        self._tables.sequence(lease).exact = checkpoint.exact
        if checkpoint.queries:
            self._tables.sequence(lease).started = checkpoint.started
            self.operations.append(CopyQueries(checkpoint.queries, lease.slot))
        if self.recurrent:
            self.operations.append(
                CopyRecurrent(checkpoint.slot, lease.slot)
                if checkpoint.resident
                else LoadRecurrent(checkpoint.identity, lease.slot)
            )
        return lease

    def can_demote(self, checkpoint: Checkpoint, dropping: Sequence[Checkpoint] = ()) -> bool:
        """Whether the host has room for what the checkpoint holds, once ``dropping`` are dropped.

        Its chunks count even while a sequence has them on the device too: it may end at any time.
        """
        return checkpoint.resident and self.host.fits(self._host_pages(checkpoint, dropping))

    def demote(self, checkpoint: Checkpoint) -> None:
        """Give up the checkpoint's places on the device; what nobody else has there is saved.

        Raises :class:`PoolExhausted` if the host has no room for it.
        """
        if not checkpoint.live or not checkpoint.resident:
            raise StateError("only a checkpoint on the device can be demoted")
        if not self.can_demote(checkpoint):
            raise PoolExhausted(
                f"no host memory for a checkpoint of {checkpoint.length} positions: it takes "
                f"{self._host_pages(checkpoint, ())} pages, {self.host.used} of "
                f"{self.host.pages} are used"
            )
        if self.recurrent:
            self._save_recurrent(checkpoint)
            self._free_slot(checkpoint, saving=True)
        checkpoint.resident = False
        for pool, held in zip(self.pools, checkpoint.chunks, strict=True):
            for chunk in held.values():
                pool.demote(chunk)
        self.demotions += 1

    def can_suspend(self, lease: SlotLease, dropping: Sequence[Checkpoint] = ()) -> bool:
        """Whether the host has room for the state of a sequence, once ``dropping`` are dropped."""
        seq = self._tables.sequence(lease)
        held = Checkpoint(seq.length, DUMMY, self._tables.visible(seq, seq.length))
        return self.host.fits(self._host_pages(held, dropping))

    def suspend(self, lease: SlotLease) -> Checkpoint:
        """Move the state of a sequence to host memory and end its lease. No step may be under way.

        Raises :class:`PoolExhausted` if the host has no room for it.
        """
        if not self.can_suspend(lease):
            raise PoolExhausted(
                f"no host memory for the state of slot {lease.slot}: {self.host.used} of "
                f"{self.host.pages} pages are used"
            )
        seq = self._tables.sequence(lease)
        chunks = self._tables.visible(seq, seq.length)
        checkpoint = self._away(seq.length, chunks, exact=seq.exact)
        if self.recurrent:
            self.operations.append(SaveRecurrent(lease.slot, checkpoint.identity))
        if seq.paged and self._tables.query_places:
            checkpoint.queries = self._tables.query_places.pop()
            checkpoint.started = seq.started
            self.operations.append(CopyQueries(lease.slot, checkpoint.queries))
        self._tables.release(lease)
        return checkpoint

    def forget_queries(self, checkpoint: Checkpoint) -> None:
        """Free the place for the queries of a suspended sequence."""
        if checkpoint.queries:
            self._tables.query_places.append(checkpoint.queries)
            checkpoint.queries = 0

    def is_away(self, lease: SlotLease) -> bool:
        """Whether checkpoints of a sequence have nothing on the device: it is paged, and chunks of
        it were away."""
        seq = self._tables.sequence(lease)
        return seq.paged and (seq.evicted > 0 or not seq.exact)

    def is_exact(self, lease: SlotLease, position: int) -> bool:
        """Whether no row before a position missed a chunk, or will in the next step."""
        seq = self._tables.sequence(lease)
        return seq.exact and (position <= seq.length or not seq.evicted)

    def needs_slot(self, lease: SlotLease, position: int) -> bool:
        """Whether a checkpoint of a paged sequence needs a slot until a step has stored it."""
        return self.recurrent and position > self._tables.length(lease)

    def _fits_away(
        self, seq: SequenceState, position: int, dropping: Sequence[Checkpoint] = ()
    ) -> bool:
        """Whether the host has room for a checkpoint of a paged sequence, once ``dropping`` are
        dropped."""
        nothing = Checkpoint(0, DUMMY, tuple({} for _ in self.pools), saved=True)
        pages = self._host_pages(nothing, dropping)
        pages += self.host.layout.recurrent_pages if self.recurrent else 0
        for pool, held in zip(self.pools, self._tables.visible(seq, position), strict=True):
            pages += pool.row_pages * sum(not chunk.saved for chunk in held.values())
        return self.host.fits(pages)

    def _take_away(self, seq: SequenceState, position: int) -> Checkpoint:
        """A checkpoint that owns the chunks of a paged sequence wherever they are. Its recurrent
        state goes to the host now, or with :meth:`stored` once a step has stored it."""
        exact, chunks = self.is_exact(seq.lease, position), self._tables.visible(seq, position)
        checkpoint = self._away(position, chunks, exact=exact)
        if not self.recurrent:
            return checkpoint
        if position > seq.length:
            checkpoint.slot = self.free.pop()
            self.operations.append(StoreRecurrent(checkpoint.slot))
        elif self.free:
            # The sequence may go on: it need not wait for the copy of a copy.
            slot = self.free.pop()
            self.operations.append(CopyRecurrent(seq.lease.slot, slot))
            self.operations.append(SaveRecurrent(slot, checkpoint.identity))
            self.free.appendleft(slot)
        else:
            self.operations.append(SaveRecurrent(seq.lease.slot, checkpoint.identity))
            self.operations.append(StoreRecurrent(seq.lease.slot))
        return checkpoint

    def stored(self, checkpoint: Checkpoint) -> None:
        """The step that stores a checkpoint's recurrent state has succeeded."""
        if not checkpoint.resident and checkpoint.slot != DUMMY:
            self.operations.append(SaveRecurrent(checkpoint.slot, checkpoint.identity))
            self._free_slot(checkpoint, saving=True)

    def _away(
        self, length: int, chunks: tuple[dict[int, Chunk], ...], *, exact: bool
    ) -> Checkpoint:
        """A checkpoint without references on the device, with its room in host memory."""
        checkpoint = Checkpoint(
            length,
            DUMMY,
            chunks,
            identity=self._tables.new_identity(),
            resident=False,
            exact=exact,
        )
        if self.recurrent:
            checkpoint.saved = True
            self.host.charge(self.host.layout.recurrent_pages)
        for pool, held in zip(self.pools, chunks, strict=True):
            for chunk in held.values():
                pool.own(chunk)
        self.live.append(checkpoint)
        return checkpoint

    def drop(self, checkpoint: Checkpoint) -> None:
        if not checkpoint.live:
            raise StateError("the checkpoint was dropped before")
        checkpoint.live = False
        self.live.remove(checkpoint)
        if not checkpoint.resident and checkpoint.slot != DUMMY:
            # No step has stored it: the host has nothing to forget.
            checkpoint.saved = False
            self.host.discharge(self.host.layout.recurrent_pages)
        self._free_slot(checkpoint, saving=False)
        self.forget_queries(checkpoint)
        self._settle_recurrent(checkpoint)
        for pool, held in zip(self.pools, checkpoint.chunks, strict=True):
            for chunk in held.values():
                if checkpoint.resident:
                    pool.drop(chunk)
                else:
                    pool.disown(chunk)

    # -- bytes that the CPU reads or writes --------------------------------------------------

    def pages_to_pin(self, checkpoint: Checkpoint, wanted: Collection[tuple[int, int]]) -> int:
        """Pages of host memory that :meth:`pin` takes."""
        layout, pages = self.host.layout, 0
        for pool, number in wanted:
            chunk = checkpoint.chunks[pool][number]
            if not chunk.charged or _is_written(checkpoint, number, chunk):
                pages += layout.block_pages[pool]
        recurrent = self.recurrent and not checkpoint.saved
        return pages + (layout.recurrent_pages if recurrent else 0)

    def pin(self, checkpoint: Checkpoint, wanted: Collection[tuple[int, int]]) -> Pin:
        """Keep recurrent state and the ``wanted`` chunks (pool, number) in host memory until
        :meth:`unpin`. What is there on the device only is saved, and stays on the device too. Of a
        chunk that a sequence appends to, the pin has a copy as it is now."""
        if not checkpoint.live:
            raise StateError("a checkpoint that was dropped cannot be pinned")
        pages = self.pages_to_pin(checkpoint, wanted)
        if not self.host.fits(pages):
            raise PoolExhausted(f"no host memory for {pages} pages of a checkpoint")
        if self.recurrent and not checkpoint.saved:
            self._save_recurrent(checkpoint)
        chunks = {}
        for index, number in wanted:
            pool, chunk = self.pools[index], checkpoint.chunks[index][number]
            if _is_written(checkpoint, number, chunk):
                chunks[index, number] = pool.copy(chunk, self._tables.new_identity())
            else:
                pool.pin(chunk)
                chunks[index, number] = chunk
        return self._pinned(checkpoint, chunks)

    def unpin(self, pin: Pin) -> None:
        """The CPU is done. Bytes that nobody else needs in host memory go."""
        self.pins.remove(pin)
        pin.checkpoint.pins -= 1
        self._settle_recurrent(pin.checkpoint)
        for (pool, _), chunk in pin.chunks.items():
            self.pools[pool].unpin(chunk)

    def pages_to_expect(self, length: int, shared: Sequence[Mapping[int, Chunk]]) -> int:
        """Pages of host memory that :meth:`expect` takes."""
        layout = self.host.layout
        pages = layout.recurrent_pages if self.recurrent else 0
        for pool, known in zip(self.pools, shared, strict=True):
            for number in visible_chunks(pool.window, length):
                charged = number in known and known[number].charged
                pages += 0 if charged else pool.row_pages
        return pages

    def expect(
        self, length: int, shared: Sequence[Mapping[int, Chunk]], *, exact: bool = True
    ) -> Pin:
        """A demoted checkpoint after ``length`` positions, pinned: its recurrent state and its
        chunks are going to be read into host memory, but for full chunks that are ``shared``, by
        pool and number. The pin has the chunks that are to be read."""
        pages = self.pages_to_expect(length, shared)
        if not self.host.fits(pages):
            raise PoolExhausted(f"no host memory for {pages} pages of a checkpoint")
        chunks: tuple[dict[int, Chunk], ...] = tuple({} for _ in self.pools)
        missing: dict[tuple[int, int], Chunk] = {}
        for index, pool in enumerate(self.pools):
            for number in visible_chunks(pool.window, length):
                chunk = shared[index].get(number)
                if chunk is None:
                    chunk = missing[index, number] = pool.expect(self._tables.new_identity())
                    pool.own(chunk)  # that of the pin
                else:
                    pool.own(chunk)
                chunks[index][number] = chunk
        checkpoint = Checkpoint(
            length,
            DUMMY,
            chunks,
            identity=self._tables.new_identity(),
            resident=False,
            exact=exact,
        )
        if self.recurrent:
            checkpoint.saved = True
            self.host.charge(self.host.layout.recurrent_pages)
        self.live.append(checkpoint)
        return self._pinned(checkpoint, missing)

    def _pinned(self, checkpoint: Checkpoint, chunks: dict[tuple[int, int], Chunk]) -> Pin:
        pin = Pin(checkpoint, chunks)
        checkpoint.pins += 1
        self.pins.append(pin)
        return pin

    def _save_recurrent(self, checkpoint: Checkpoint) -> None:
        if not checkpoint.saved:
            self.operations.append(SaveRecurrent(checkpoint.slot, checkpoint.identity))
            checkpoint.saved = True
            self.host.charge(self.host.layout.recurrent_pages)

    def _settle_recurrent(self, checkpoint: Checkpoint) -> None:
        """Forget recurrent state that neither a demoted checkpoint nor a pin needs."""
        demoted = checkpoint.live and not checkpoint.resident
        if checkpoint.saved and not checkpoint.pins and not demoted:
            self.operations.append(DropSaved(checkpoint.identity))
            checkpoint.saved = False
            self.host.discharge(self.host.layout.recurrent_pages)

    def _free_slot(self, checkpoint: Checkpoint, *, saving: bool) -> None:
        if checkpoint.slot != DUMMY:
            put = self.free.appendleft if saving else self.free.append
            put(checkpoint.slot)
            checkpoint.slot = DUMMY

    def _host_pages(self, checkpoint: Checkpoint, dropping: Sequence[Checkpoint]) -> int:
        """Pages by which the host's memory fills when ``dropping`` are dropped and the checkpoint
        is demoted then; negative if they free more than it takes."""
        layout = self.host.layout
        recurrent = int(self.recurrent and not checkpoint.saved)
        recurrent -= sum(held.saved and not held.pins for held in dropping)
        pages = recurrent * layout.recurrent_pages
        for index, row_pages in enumerate(layout.block_pages):
            pages += row_pages * self._host_rows(index, checkpoint, dropping)
        return pages

    def _host_rows(self, pool: int, checkpoint: Checkpoint, dropping: Sequence[Checkpoint]) -> int:
        """The same for the rows of one pool."""
        chunks: dict[int, Chunk] = {}
        owners: Counter[int] = Counter()
        refs: Counter[int] = Counter()
        for held in dropping:
            for chunk in held.chunks[pool].values():
                chunks[chunk.identity] = chunk
                owners[chunk.identity] += 1
                refs[chunk.identity] += held.resident
        for chunk in checkpoint.chunks[pool].values():
            chunks[chunk.identity] = chunk
            refs[chunk.identity] += 1
        rows = 0
        for identity, chunk in chunks.items():
            left = chunk.owners - owners[identity]
            away = left > chunk.refs - refs[identity]
            rows += (left > 0 and (chunk.saved or away)) - chunk.charged
        return rows


def _is_written(checkpoint: Checkpoint, number: int, chunk: Chunk) -> bool:
    """Whether a sequence may still append to a chunk of a checkpoint."""
    full = (number + 1) * CHUNK_POSITIONS <= checkpoint.length
    return not (full or chunk.saved or chunk.refs == chunk.kept)
