"""What goes to the disk and what comes back: decisions in integers. Torch-free.

A stored prefix is **spilled** when it has left the device, and when the engine has nothing to do:
its bytes are pinned in host memory until the disk has them. A point of the disk is **fetched** for
a request that begins with its tokens, if much less of them is in memory: a demoted checkpoint whose
bytes are pinned until they are read. What is to be done is a ``SpillSaved`` or a ``FetchSaved``
among the operations of a plan; :meth:`DiskBooks.spilled` and :meth:`DiskBooks.fetched` hear what
became of it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from kinfolk.residency.kept import NOTHING_KEPT, KeptResidency
from kinfolk.state.checkpoint_store import CheckpointStore
from kinfolk.state.chunks import Chunk, Pin
from kinfolk.state.disk import DiskCache
from kinfolk.state.disk_folder import PointInfo
from kinfolk.state.disk_format import residency_bytes
from kinfolk.state.disk_requests import StoreReport, point_hash
from kinfolk.state.eviction import Rank, rank_of
from kinfolk.state.geometry import chunks_for, first_visible_chunk
from kinfolk.state.hashed_tokens import HashedTokens
from kinfolk.state.operations import FetchSaved, SpillSaved
from kinfolk.state.prefix import PrefixCache, PrefixMatch
from kinfolk.state.stored_prefix import StoredPrefix
from kinfolk.types import CHUNK_POSITIONS

log = logging.getLogger(__name__)

FETCH_MARGIN: Final = 64
"""Tokens that a point on the disk must have more than what is in memory."""

MOST_SPILLS: Final = 4
"""Prefixes that are pinned for the disk at once."""

NO_HOST_ROOM: Final = (
    "host memory has no room for its bytes on their way there; raise --cache-memory"
)

_RENAMED: Final = "another prefix has got its name"
_DROP_KINDS: Final = ("limit", "full", "host", "other")


PromptStart = tuple[HashedTokens, PrefixMatch | None]
"""A prompt as the prefix cache knows it, and what memory has of it."""


@dataclass(eq=False, slots=True)
class SpillName:
    """A name that a prefix is to have on the disk. ``heard`` is called once: with "" when it has
    it, else with why not."""

    text: str
    entry: StoredPrefix
    heard: Callable[[str], None]


@dataclass(eq=False, slots=True)
class Spill:
    """A prefix on its way to the disk. ``first``: the first chunk that it needs of each pool;
    ``name``: that of the point; ``sent``: the operation was decided."""

    entry: StoredPrefix
    pin: Pin
    first: tuple[int, ...]
    name: SpillName | None = None
    sent: bool = False


@dataclass(eq=False, slots=True)
class Fetch:
    """A point on its way from the disk, with the first of ``tokens``; ``residency``: memory for
    what its sequence saw, if it was paged."""

    tokens: HashedTokens
    point: PointInfo
    pin: Pin
    residency: bytearray | None = None


@dataclass(slots=True)
class DiskCounts:
    """Points written and read since the start. ``dropped`` counts those that could not be written,
    by the kind of reason (:class:`StoreReport`; ``host``: host memory has no room for the bytes);
    ``lost`` could not be read."""

    spills: int = 0
    spilled_bytes: int = 0
    fetches: int = 0
    fetched_tokens: int = 0
    lost: int = 0
    dropped: Counter[str] = field(default_factory=Counter)


class DiskBooks:
    """Jobs of the disk by number. The engine's thread owns it; ``cache`` is used for look-ups.
    ``paging`` says what sequences are paged by, if they are."""

    def __init__(
        self, store: CheckpointStore, prefixes: PrefixCache, cache: DiskCache, paging: str = ""
    ) -> None:
        self.cache = cache
        self.paging = paging
        self.counts = DiskCounts()
        self.spills: dict[int, Spill] = {}
        self.fetches: dict[int, Fetch] = {}
        self.hits: list[int] = []
        """Points whose prefixes were used in memory, for the limit of the disk."""
        self._store = store
        self._prefixes = prefixes
        self._jobs = 0
        self._named: dict[str, SpillName] = {}
        self._warned = False

    def stats(self) -> dict[str, int]:
        """Counters since the start, and what the disk has: points of this model, and bytes of all
        models."""
        counts = self.counts
        return {
            "disk_points": len(self.cache.points()),
            "disk_bytes": self.cache.nbytes,
            "disk_spills": counts.spills,
            "disk_spilled_bytes": counts.spilled_bytes,
            "disk_fetches": counts.fetches,
            "disk_fetched_tokens": counts.fetched_tokens,
            "disk_drops_lost": counts.lost,
            **{f"disk_drops_{kind}": counts.dropped[kind] for kind in _DROP_KINDS},
        }

    # -- to the disk --------------------------------------------------------------------------

    def spill(self, *, idle: bool = False, closing: bool = False) -> bool:
        """Decide what is written next: prefixes that have left the device, and with ``idle`` those
        on it too. With ``closing`` nothing in host memory is kept that the disk has. False if
        nothing is left to be written."""
        left = False
        for entry in self._due(idle=idle or closing):
            if len(self.spills) >= MOST_SPILLS:
                left = True
                break
            left |= not self._begin(entry, closing=closing)
        for job, spill in self.spills.items():
            if not spill.sent and self._is_in_memory(spill.pin):
                spill.sent = True
                identities, blocks = _identities(spill.pin)
                self._store.operations.append(SpillSaved(job, identities, blocks))
        return left or bool(self.spills)

    def name(self, entry: StoredPrefix, name: str, heard: Callable[[str], None]) -> None:
        """Write a prefix under a name, as soon as there is room for its bytes; ``heard``: see
        :class:`SpillName`."""
        self._want(SpillName(name, entry, heard))
        entry.spilled = False
        self._begin(entry, closing=False)

    def spilled(self, job: int, report: StoreReport) -> None:
        """What became of a spill."""
        spill = self.spills.pop(job, None)
        if spill is None:
            return
        self._store.unpin(spill.pin)
        if report.outcome == "dropped":
            kind = report.kind if report.kind in _DROP_KINDS else "other"
            self.counts.dropped[kind] += 1
            # Another process has removed chunks that were there: with their bytes it is written.
            if report.missing and spill.entry in self._prefixes:
                self._prefixes.demoted[spill.entry] = None
                spill.entry.spilled = False
                if spill.name is not None:
                    self._named.setdefault(spill.name.text, spill.name)
                    if self._named[spill.name.text] is not spill.name:
                        spill.name.heard(_RENAMED)
            elif spill.name is not None:
                spill.name.heard(report.reason)
            return
        if report.outcome == "stored":
            self.counts.spills += 1
            self.counts.spilled_bytes += report.nbytes
        if spill.name is not None:
            spill.name.heard("")

    def _want(self, name: SpillName) -> None:
        """The last prefix that is to have a name gets it."""
        before = self._named.get(name.text)
        self._named[name.text] = name
        if before is not None:
            before.heard(_RENAMED)

    def _due(self, *, idle: bool) -> Iterator[StoredPrefix]:
        """Prefixes to be written, those with names first."""
        for name in list(self._named.values()):
            if name.entry not in self._prefixes:
                self._settled(name.entry, name, "memory had no room for its state")
        named = self._named_entries()
        for entry in [*(named | self._prefixes.demoted), *(self._prefixes if idle else ())]:
            if entry not in self._prefixes:
                continue
            if entry.spilled or not (entry in named or self._is_wanted(entry)):
                self._prefixes.demoted.pop(entry, None)
            else:
                yield entry

    def _is_wanted(self, entry: StoredPrefix) -> bool:
        """Whether a conversation may go on from here after a restart."""
        rank = rank_of(entry, any_chunk=self._prefixes.any_chunk)
        return rank in (Rank.COVERED, Rank.LIVE, Rank.SHARED)

    def _begin(self, entry: StoredPrefix, *, closing: bool) -> bool:
        """Pin a prefix for the disk; false if it must be tried again."""
        store = self._store
        name = next((each for each in self._named.values() if each.entry is entry), None)
        if self.cache.off or (self.holds(entry) and name is None):
            return self._settled(entry, name, self.cache.off)
        first = self._first(entry.length)
        full, rest = divmod(entry.length, CHUNK_POSITIONS)
        wanted = self.cache.missing(entry.tokens.chain[: full + 1], first)
        wanted += [(pool, full) for pool in range(len(first)) if rest]

        def fits() -> bool:
            return store.host.fits(store.pages_to_pin(entry.checkpoint, wanted))

        def spare(other: StoredPrefix) -> bool:
            if other is entry or other in self._named_entries():
                return False
            return self.holds(other) or (closing and (other.spilled or not self._is_wanted(other)))

        if not self._prefixes.make_host_room(fits, spare):
            if self.spills or self.fetches:
                return False
            if not self._warned:
                self._warned = True
                log.warning(
                    "a prefix of %d tokens is not kept on the disk: %s", entry.length, NO_HOST_ROOM
                )
            self.counts.dropped["host"] += 1
            return self._settled(entry, name, NO_HOST_ROOM)
        self._settled(entry, name)
        self.spills[self._next_job()] = Spill(
            entry, store.pin(entry.checkpoint, wanted), first, name
        )
        return True

    def _settled(self, entry: StoredPrefix, name: SpillName | None, fault: str = "") -> bool:
        """Nothing more is to be decided about a prefix and one of its names. ``fault``: why it is
        not written."""
        if name is not None:
            del self._named[name.text]
            if fault:
                name.heard(fault)
        entry.spilled = entry not in self._named_entries()
        self._prefixes.demoted.pop(entry, None)
        return True

    def _named_entries(self) -> dict[StoredPrefix, None]:
        """Those that are to be written under a name."""
        return dict.fromkeys(each.entry for each in self._named.values())

    def paged(self, entry: StoredPrefix) -> tuple[str, bytes]:
        """What the sequence of a prefix was paged by, and what it saw; nothing of an exact one."""
        if entry.checkpoint.exact:
            return "", b""
        return self.paging, (entry.residency or NOTHING_KEPT).packed(chunks_for(entry.length))

    def holds(self, entry: StoredPrefix) -> bool:
        """Whether the disk has the point of a prefix."""
        return self.cache.holds(_key(entry))

    def _is_in_memory(self, pin: Pin) -> bool:
        saving = self._store.operations.saving
        identities = [chunk.identity for chunk in pin.chunks.values()]
        return not any(one in saving for one in (pin.checkpoint.identity, *identities))

    # -- from the disk ------------------------------------------------------------------------

    def fetch(self, *starts: PromptStart) -> int | None:
        """Begin to fetch the longest point that a prompt begins with, if there is one that is
        longer than all matches by the margin, and room for it. ``starts`` are the prompt as exact
        prefixes know it, and as those of sequences that missed something do, if it may start from
        one, each with its match in memory. Returns its job, which may have begun before."""
        found = [self.cache.find(one.packed, one.chain, len(one) - 1) for one, _ in starts]
        point = max(filter(None, found), key=lambda one: one.length, default=None)
        known = max(0 if match is None else match.length for _, match in starts)
        if point is None or point.length < known + FETCH_MARGIN:
            return None
        prompt, match = starts[found.index(point)]
        for job, fetch in self.fetches.items():
            if fetch.point.key == point.key:
                return job
        if point.first != self._first(point.length):
            return None
        store, shared = self._store, self._shared(match)

        def fits() -> bool:
            return store.host.fits(store.pages_to_expect(point.length, shared))

        def spare(other: StoredPrefix) -> bool:
            return match is None or other is not match.entry

        pages = store.host.pages
        if pages is not None and store.pages_to_expect(point.length, shared) > pages:
            return None
        if not self._prefixes.make_host_room(fits, spare):
            return None
        job = self._next_job()
        pin = store.expect(point.length, shared, exact=not point.paging)
        seen = bytearray(residency_bytes(point.length)) if point.paging else None
        self.fetches[job] = Fetch(prompt, point, pin, seen)
        store.operations.append(FetchSaved(job, *_identities(pin)))
        return job

    def started(self, match: PrefixMatch | None) -> None:
        """A request has started from a prefix in memory."""
        if match is not None and match.entry.spilled:
            self.hits.append(_key(match.entry))

    def fetched(self, job: int, *, read: bool) -> StoredPrefix | None:
        """What became of a fetch: the prefix that is now in host memory."""
        fetch = self.fetches.pop(job, None)
        if fetch is None:
            return None
        checkpoint = fetch.pin.checkpoint
        self._store.unpin(fetch.pin)
        if not read:
            self.counts.lost += 1
            self._store.drop(checkpoint)
            return None
        seen = None if fetch.residency is None else KeptResidency.unpacked(fetch.residency)
        entry = self._prefixes.add_demoted(fetch.tokens, checkpoint, seen)
        if entry is not None:
            entry.spilled = True
            self.counts.fetches += 1
            self.counts.fetched_tokens += entry.length
        return entry

    def forget(self) -> list[int]:
        """After a fault or at the end: nothing is written or read any more. Returns the jobs of
        fetches that ended so; the caller has seen to it that nobody uses host memory."""
        names = [*self._named.values(), *(spill.name for spill in self.spills.values())]
        for spill in self.spills.values():
            self._store.unpin(spill.pin)
        self.spills.clear()
        self._named.clear()
        for name in names:
            if name is not None:
                name.heard("its state was lost before it was written")
        jobs = list(self.fetches)
        for fetch in self.fetches.values():
            self._store.unpin(fetch.pin)
            self._store.drop(fetch.pin.checkpoint)
        self.fetches.clear()
        return jobs

    # -- inside -------------------------------------------------------------------------------

    def _first(self, length: int) -> tuple[int, ...]:
        """The first chunk of each pool that a point needs."""
        return tuple(first_visible_chunk(pool.window, length) for pool in self._store.pools)

    def _shared(self, match: PrefixMatch | None) -> list[dict[int, Chunk]]:
        """Full chunks of each pool that memory has of a match."""
        if match is None:
            return [{} for _ in self._store.pools]
        full = match.length // CHUNK_POSITIONS
        return [
            {number: chunk for number, chunk in held.items() if number < full}
            for held in match.checkpoint.chunks
        ]

    def _next_job(self) -> int:
        self._jobs += 1
        return self._jobs


def _key(entry: StoredPrefix) -> int:
    """The hash of the point of a prefix."""
    return point_hash(entry.tokens.chain, entry.tokens.packed, entry.length)


def _identities(pin: Pin) -> tuple[int, tuple[tuple[int, int, int], ...]]:
    """The identity of recurrent state, 0 = none, and (pool, chunk, identity) of the blocks."""
    checkpoint = pin.checkpoint
    blocks = tuple((pool, number, chunk.identity) for (pool, number), chunk in pin.chunks.items())
    return checkpoint.identity if checkpoint.saved else 0, blocks
