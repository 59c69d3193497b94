"""Admission: requests wait in order, and get a slot when all blocks they may need are free."""

from __future__ import annotations

from bisect import insort

from kinfolk.sched.acceptance import check_request, positions_of
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.paging import Paging
from kinfolk.sched.request import Place, Request, Sequence
from kinfolk.sched.reuse_counts import ReuseCounts
from kinfolk.state.chunks import Checkpoint
from kinfolk.state.disk_books import DiskBooks
from kinfolk.state.hashed_tokens import HashedTokens
from kinfolk.state.kv_cache_manager import KVCacheManager
from kinfolk.state.prefix import NO_PREFIXES, PrefixCache, PrefixMatch
from kinfolk.state.stored_prefix import PrefixKind, StoredPrefix


class Admission:
    """The waiting line. Its head is never overtaken by a request behind it, unless it waits for the
    disk: it is out of the line then, and comes back to its place. ``reused`` counts what those
    that got a slot started from."""

    def __init__(
        self,
        limits: SchedulerLimits,
        kv_cache: KVCacheManager,
        prefixes: PrefixCache,
        paging: Paging,
        disk: DiskBooks | None = None,
    ) -> None:
        self._paging = paging
        self._limits = limits
        self._kv_cache = kv_cache
        self._prefixes = prefixes
        self._disk = disk
        self._waiting: list[Sequence] = []
        self._fetching: dict[int, list[Sequence]] = {}
        self._blocked = False
        self.reused = ReuseCounts()

    def __len__(self) -> int:
        return len(self._waiting) + sum(map(len, self._fetching.values()))

    def check(self, request: Request) -> None:
        """Raise :class:`RequestError` for a request that could never run."""
        check_request(request, self._limits, self._kv_cache.tables, self._paging)

    def enqueue(self, sequence: Sequence) -> None:
        insort(self._waiting, sequence, key=_order)
        if self._waiting[0] is sequence:
            self._blocked = False

    def withdraw(self, sequence: Sequence) -> None:
        """Take a sequence out of the line; what is read for it is read to its end."""
        for line in (self._waiting, *self._fetching.values()):
            line[:] = [other for other in line if other is not sequence]
        self._blocked = False

    def room_changed(self) -> None:
        """Something was freed or kept: the head may try again."""
        self._blocked = False

    def freed(self) -> None:
        """A request or the disk has given something back: the head may preempt again, too."""
        self.room_changed()
        if self._waiting:
            self._waiting[0].preempts = True

    @property
    def head(self) -> Sequence | None:
        """The one that is next to get a slot."""
        return self._waiting[0] if self._waiting else None

    def waits_for_disk(self, sequence: Sequence) -> bool:
        return any(sequence in line for line in self._fetching.values())

    def fetched(self, job: int, entry: StoredPrefix | None) -> None:
        """A fetch is over: what waited for it is in line again."""
        for sequence in self._fetching.pop(job, ()):
            sequence.fetched = entry
            self.enqueue(sequence)

    def may_admit(self, places: int) -> bool:
        """Whether the first waiting request may fit."""
        return bool(self._waiting) and not self._blocked and places > 0

    def admit(self, places: int) -> list[Sequence]:
        """Lease slots to the head of the line as long as it fits, ``places`` at most.

        A trial takes time in proportion to the blocks in use, so a head that did not fit is not
        tried again before :meth:`room_changed`.
        """
        admitted: list[Sequence] = []
        while self._waiting and not self._blocked and len(admitted) < places:
            sequence = self._waiting[0]
            if self._begins_fetch(sequence):
                self._waiting.pop(0)
                continue
            if not self._open(sequence):
                self._blocked = True
                break
            admitted.append(self._waiting.pop(0))
        return admitted

    def go_on(self, places: int) -> list[Sequence]:
        """Lease slots to preempted sequences behind a head that did not fit though nothing runs:
        what they keep in host memory, or what they wait for, may be what it lacks. So that somebody
        always runs, the head takes no more places before :meth:`freed`."""
        found: list[Sequence] = []
        for each in self._waiting[1:]:
            if len(found) < places and each.kept is not None and self._open(each):
                found.append(each)
        if found:
            self._waiting[0].preempts = False
            self._waiting = [each for each in self._waiting if each.lease is None]
        return found

    def _begins_fetch(self, sequence: Sequence) -> bool:
        """Whether a sequence that could have a slot waits for the disk from now on."""
        if self._disk is None or sequence.asked_disk or self._slot(sequence) is None:
            return False
        sequence.asked_disk = True
        prompts = [sequence.prompt]
        if self._paging.resident(positions_of(sequence.request)) is not None:
            prompts.append(self._salted(sequence))
        job = self._disk.fetch(*((one, self._prefixes.find(one)) for one in prompts))
        if job is not None:
            self._fetching.setdefault(job, []).append(sequence)
        return job is not None

    def _open(self, sequence: Sequence) -> bool:
        slot = self._slot(sequence)
        if slot is None:
            return False
        positions = positions_of(sequence.request)
        resident = self._paging.resident(positions)
        if sequence.kept is not None:
            return self._reopen(sequence, sequence.kept, positions, slot, resident)
        prefix = self._find(sequence, resident)
        for start in (None,) if prefix is None else (prefix, None):
            wanted = positions, sequence, start, resident
            if self._make_room(*wanted) or self._make_room_on_the_host(*wanted):
                if start is not None:
                    sequence.reused_from = _place(sequence, start)
                checkpoint, length = _from(start)
                seen = None if start is None else start.entry.residency
                away = self._paging.away(length, len(sequence.prompt), seen) if resident else ()
                sequence.lease = self._kv_cache.open(
                    positions, checkpoint, length, slot, resident=resident, away=away
                )
                self._paging.started(sequence, seen)
                sequence.reused = sequence.computed = length
                sequence.start = None if start is None else start.whole
                self._prefixes.started(start)
                if sequence.reused_from is not None:
                    self.reused.add(sequence.reused_from, length)
                if self._disk is not None and sequence.reused_from in ("device", "host"):
                    self._disk.started(start)
                return True
        return False

    def _find(self, sequence: Sequence, resident: int | None) -> PrefixMatch | None:
        """The longest stored prefix. A paged sequence may start from one that missed something."""
        exact = self._prefixes.find(sequence.prompt)
        if resident is None:
            return exact
        paged = self._prefixes.find(self._salted(sequence))
        if exact is None or (paged is not None and paged.length > exact.length):
            return paged
        return exact

    def _salted(self, sequence: Sequence) -> HashedTokens:
        """Its prompt as prefixes of sequences know it that missed something."""
        if sequence.salted is None:
            sequence.salted = self._paging.salt(sequence.prompt)
        return sequence.salted

    def _reopen(
        self,
        sequence: Sequence,
        kept: Checkpoint,
        positions: int,
        slot: int,
        resident: int | None,
    ) -> bool:
        """Bring a preempted sequence back from its own state."""
        if not self._make_blocks(positions, kept, None, (NO_PREFIXES,), resident):
            return False
        paged = sequence.residency
        away = frozenset() if paged is None else frozenset(paged.away.tolist())
        sequence.lease = self._kv_cache.open(
            positions, kept, None, slot, resident=resident, away=away
        )
        self._paging.started(sequence)
        return True

    def _slot(self, sequence: Sequence) -> int | None:
        """The slot that a sequence asks for, if it is free; or the lowest free one, of those that
        none in the line asks for if there are any."""
        free = self._kv_cache.tables.free
        if sequence.request.slot is not None:
            return sequence.request.slot if sequence.request.slot in free else None
        lines = (self._waiting, *self._fetching.values())
        asked = {other.request.slot for line in lines for other in line}
        return min([slot for slot in free if slot not in asked] or free, default=None)

    def _make_room(
        self,
        positions: int,
        sequence: Sequence,
        start: PrefixMatch | None,
        resident: int | None,
    ) -> bool:
        """Let stored prefixes leave the device, but only if that is enough. ``start`` stays where
        it is, and the conversation that it belongs to goes last."""
        checkpoint, length = _from(start)
        kept = NO_PREFIXES if start is None else frozenset({start.entry})
        last = kept | self._prefixes.needed_by(
            PrefixKind.FORK,
            None if start is None else start.whole,
            sequence.prompt,
            len(sequence.prompt),
        )
        return self._make_blocks(positions, checkpoint, length, (last, kept), resident)

    def _make_room_on_the_host(
        self,
        positions: int,
        sequence: Sequence,
        start: PrefixMatch | None,
        resident: int | None,
    ) -> bool:
        """Let the prefix that a sequence starts from leave the device too: there, the chunk that it
        ends in takes a block beside that of its copy, and a sequence as long as the context may
        need all blocks itself."""
        if start is None or not start.checkpoint.resident:
            return False
        gain, tables = self._prefixes.reclaimable(), self._kv_cache.tables
        need = self._kv_cache.needed(positions, resident=resident)
        if any(tables.available(pool) + gain[pool] < need[pool] for pool in range(len(need))):
            return False
        return self._prefixes.send_away(start.entry) and self._make_room(
            positions, sequence, start, resident
        )

    def _make_blocks(
        self,
        positions: int,
        start: Checkpoint | None,
        length: int | None,
        keep: tuple[frozenset[StoredPrefix], ...],
        resident: int | None,
    ) -> bool:
        """Let prefixes leave the device until a sequence can be opened, none if that would not be
        enough; the first of ``keep`` go last. For a paged one, those in host memory go too."""
        if self._kv_cache.can_open(positions, start, length, resident=resident):
            return True
        gain = self._prefixes.reclaimable(keep=start)
        need = self._kv_cache.needed(positions, start, length, resident=resident, alone=True)
        if any(
            self._kv_cache.tables.available(pool) + gain[pool] < need[pool]
            for pool in range(len(need))
        ):
            return False

        def fits_host() -> bool:
            return self._kv_cache.fits_host(positions, start, length, resident=resident)

        while not self._kv_cache.can_open(positions, start, length, resident=resident):
            if not fits_host():
                if not self._prefixes.make_host_room(fits_host, lambda each: each not in keep[-1]):
                    return False
            elif not any(self._prefixes.evict_one(kept) for kept in keep):
                return False
        return True


def _from(start: PrefixMatch | None) -> tuple[Checkpoint | None, int]:
    return (None, 0) if start is None else (start.checkpoint, start.length)


def _place(sequence: Sequence, start: PrefixMatch) -> Place:
    if start.entry is sequence.fetched:
        return "disk"
    return "device" if start.checkpoint.resident else "host"


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.request.priority, sequence.arrival
