"""Prefix cache: checkpoints by the tokens before them.

A hybrid model can resume only where its recurrent state was stored, and one with windows only where
a checkpoint holds their chunks. A family with neither may start from the first chunks of any
checkpoint. :mod:`kinfolk.state.eviction` says what leaves the device first; it goes to host memory
if there is room. Torch-free.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile

from kinfolk.residency.kept import KeptResidency
from kinfolk.state.checkpoint_store import CheckpointStore
from kinfolk.state.chunks import Checkpoint, SlotLease
from kinfolk.state.eviction import PrefixBytes, needed_by, victims
from kinfolk.state.hashed_tokens import HashedTokens
from kinfolk.state.stored_prefix import PrefixKind, PrefixTree, StoredPrefix
from kinfolk.types import CHUNK_POSITIONS

NO_PREFIXES: frozenset[StoredPrefix] = frozenset()


class DropReason(Enum):
    """Why a stored prefix went.

    ROOM        for another one, or for the blocks of a request
    SUPERSEDED  there was one for the same tokens
    CHOICES     the last answer to the prompt has started
    FAULT       the state on the device is lost
    """

    ROOM = "room"
    SUPERSEDED = "superseded"
    CHOICES = "choices"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """A stored prefix whose first ``length`` tokens begin a prompt."""

    entry: StoredPrefix
    length: int

    @property
    def checkpoint(self) -> Checkpoint:
        return self.entry.checkpoint

    @property
    def whole(self) -> StoredPrefix | None:
        """The longest stored prefix that lies in the match as a whole."""
        return next((each for each in self.entry.path() if each.length <= self.length), None)


@dataclass(slots=True)
class PrefixCounts:
    """Requests that started, those of them that started from a prefix, and what they reused."""

    lookups: int = 0
    hits: int = 0
    tokens: int = 0


class PrefixCache:
    """Checkpoints of one store by their token prefixes, which are indexed by their full chunks.

    At most ``capacity`` of them are on the device; how many are in host memory depends on its room.
    ``size`` weighs them for eviction. ``demoted`` are those that left the device since somebody
    took them out.
    """

    def __init__(
        self, store: CheckpointStore, capacity: int, size: PrefixBytes | None = None
    ) -> None:
        self.any_chunk = store.any_chunk
        self.capacity = capacity
        self.counts = PrefixCounts()
        self.drops: Counter[DropReason] = Counter()
        self.demoted: dict[StoredPrefix, None] = {}
        self._store = store
        self._size = size or PrefixBytes()
        self._entries: dict[StoredPrefix, None] = {}
        self._ends: dict[int, list[StoredPrefix]] = {}
        self._chunks: dict[int, dict[StoredPrefix, None]] = {}
        self._tree = PrefixTree()
        self._tick = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: object) -> bool:
        return entry in self._entries

    def __iter__(self) -> Iterator[StoredPrefix]:
        """Stored prefixes, the least recently used first."""
        return iter(self._entries)

    def items(self) -> list[tuple[tuple[int, ...], Checkpoint]]:
        """Prefixes and their checkpoints, the least recently used first."""
        return [(each.tokens.prefix(each.length), each.checkpoint) for each in self._entries]

    def stats(self) -> dict[str, int]:
        """Counters since the start, and the number of stored prefixes, also by their place;
        ``prefixes_device_bytes`` are those that they have there, some of them shared with running
        sequences. Any thread may ask."""
        counts, entries = self.counts, list(self._entries)
        device = sum(each.checkpoint.resident for each in entries)
        sizes = zip(self._store.pools, self._size.blocks, strict=False)  # toys have no bytes
        blocks = sum(pool.kept * nbytes for pool, (_, nbytes) in sizes)
        return {
            "prefixes": len(entries),
            "prefixes_device": device,
            "prefixes_host": len(entries) - device,
            "prefixes_device_bytes": device * self._size.recurrent + blocks,
            "prefix_lookups": counts.lookups,
            "prefix_hits": counts.hits,
            "prefix_tokens": counts.tokens,
            **{f"prefix_drops_{reason.value}": self.drops[reason] for reason in DropReason},
        }

    # -- looking up ---------------------------------------------------------------------------

    def at(self, tokens: HashedTokens, length: int) -> StoredPrefix | None:
        """The one after exactly the first ``length`` tokens."""
        for each in self._ends.get(tokens.chain[length // CHUNK_POSITIONS], ()):
            if each.length == length and each.begins(tokens):
                return each
        return None

    def holds(self, tokens: HashedTokens, length: int) -> bool:
        """Whether there is a checkpoint after exactly the first ``length`` tokens."""
        return self.at(tokens, length) is not None

    def find(self, prompt: HashedTokens) -> PrefixMatch | None:
        """The longest match that leaves at least one token of ``prompt`` to compute: a whole
        stored prefix or, with ``any_chunk``, the first chunks of one.

        Takes a look at each chunk of the prompt at most, however many prefixes there are. A hash is
        only a hint: tokens are compared before a checkpoint is believed to fit.
        """
        chain, longest = prompt.chain, len(prompt) - 1
        for chunks in range(self._known(chain), -1, -1):
            for each in self._ends.get(chain[chunks], ()):
                if each.length <= longest and each.begins(prompt):
                    return PrefixMatch(each, each.length)
            length = chunks * CHUNK_POSITIONS
            if self.any_chunk and 0 < length <= longest:
                for each in self._chunks.get(chain[chunks], ()):
                    if prompt.starts_like(each.tokens, length):
                        return PrefixMatch(each, length)
        return None

    def started(self, match: PrefixMatch | None) -> None:
        """A request has started, from a match or from nothing."""
        self._tick += 1
        self.counts.lookups += 1
        if match is None:
            return
        self.counts.hits += 1
        self.counts.tokens += match.length
        entry = match.entry
        entry.hits += 1
        entry.used = self._tick
        self._entries[entry] = self._entries.pop(entry)

    # -- storing ------------------------------------------------------------------------------

    def insert(
        self,
        tokens: HashedTokens,
        checkpoint: Checkpoint,
        kind: PrefixKind = PrefixKind.FORK,
        *,
        forks: Collection[int] = (),
        start: StoredPrefix | None = None,
        residency: KeptResidency | None = None,
    ) -> None:
        """Take over a checkpoint behind the first of ``tokens``; a second one for the same prefix
        is dropped at once. ``forks`` are the lengths at which the request said that later prompts
        branch off, ``start`` is what it started from, ``residency`` what it saw if it is paged."""
        if self.holds(tokens, checkpoint.length):
            self.drops[DropReason.SUPERSEDED] += 1
            self._store.drop(checkpoint)
            return
        keep = self.needed_by(kind, start, tokens, checkpoint.length)
        while checkpoint.resident and len(self._resident()) >= self.capacity:
            if not self.evict_one(keep):
                self._store.drop(checkpoint)
                return
        entry = self._add(tokens, checkpoint, kind)
        entry.residency = residency
        _leave_behind(entry, forks)
        if not checkpoint.resident:
            self.demoted[entry] = None

    def add_demoted(
        self, tokens: HashedTokens, checkpoint: Checkpoint, residency: KeptResidency | None = None
    ) -> StoredPrefix | None:
        """Take over a demoted checkpoint behind the first of ``tokens`` that a request waits for;
        it is dropped if there is one for the same prefix."""
        if self.holds(tokens, checkpoint.length):
            self.drops[DropReason.SUPERSEDED] += 1
            self._store.drop(checkpoint)
            return None
        entry = self._add(tokens, checkpoint, PrefixKind.FORK)
        entry.residency = residency
        return entry

    def rename(self, tokens: HashedTokens, length: int, kind: PrefixKind) -> bool:
        """Whether there is a prefix of that length; what was only kept in case of need becomes
        ``kind``."""
        found = self.at(tokens, length)
        if found is not None and found.kind.is_spare and not kind.is_spare:
            found.kind = kind
        return found is not None

    # -- dropping -----------------------------------------------------------------------------

    def victims(self, keep: Collection[StoredPrefix] = NO_PREFIXES) -> list[StoredPrefix]:
        """All but ``keep``, the first to go first."""
        return victims(self._entries, self._tick, self._size, any_chunk=self.any_chunk, keep=keep)

    def needed_by(
        self, kind: PrefixKind, start: StoredPrefix | None, tokens: HashedTokens, length: int
    ) -> frozenset[StoredPrefix]:
        """What a request that started from ``start`` must not push out for a checkpoint of a kind
        after the first ``length`` of ``tokens``."""
        if self.capacity == 1:
            return NO_PREFIXES
        newest = None
        if start not in self._entries:
            start = None
        if start is not None:
            newest = max(start.all_below(), key=lambda each: each.used, default=None)
        if newest is not None and newest.length <= length and newest.begins(tokens):
            newest = None
        return needed_by(kind, start, self._above(tokens, length), newest, self._tick)

    def reclaimable(self, keep: Checkpoint | None = None) -> tuple[int, ...]:
        """Blocks of each pool that become available when all checkpoints but ``keep`` leave the
        device.

        Tables that may give up a chunk do not matter: a block that they hold too was charged for
        the checkpoints. Others do: their blocks stay.
        """
        dropped = [each.checkpoint for each in self._resident() if each.checkpoint is not keep]
        gain = []
        for index in range(len(self._store.pools)):
            counts = Counter(
                chunk.identity for held in dropped for chunk in held.chunks[index].values()
            )
            held_by = {
                chunk.identity: chunk.refs - chunk.movable
                for held in dropped
                for chunk in held.chunks[index].values()
            }
            gain.append(sum(held_by[identity] == count for identity, count in counts.items()))
        return tuple(gain)

    def make_room(
        self, lease: SlotLease, position: int, keep: Collection[StoredPrefix] = NO_PREFIXES
    ) -> bool:
        """Let as few leave the device as make a checkpoint of a sequence possible, in the order of
        :meth:`victims`; none if all of them would not."""
        if not self.capacity:
            return False
        if self._store.can_take(lease, position):
            return True
        if self._store.is_away(lease):
            return self._make_room_away(lease, position, keep)
        entries = [each for each in self.victims(keep) if each.checkpoint.resident]
        first = [each.checkpoint for each in entries]
        if not self._store.can_take(lease, position, first):
            return False
        enough = 1
        while not self._store.can_take(lease, position, first[:enough]):
            enough += 1
        for entry in entries[:enough]:
            if entry in self._entries:
                self._leave_device(entry, keep)
        return True

    def _make_room_away(
        self, lease: SlotLease, position: int, keep: Collection[StoredPrefix]
    ) -> bool:
        """The same for a paged sequence: a slot for the step, and host memory."""
        needs_slot = self._store.needs_slot(lease, position) and not self._store.has_slot
        if needs_slot and not self.evict_one(keep):
            return False
        held = _on_the_host(self.victims(keep))
        return self._drop_until(lambda gone: self._store.can_take(lease, position, gone), held)

    def evict_one(self, keep: Collection[StoredPrefix] = NO_PREFIXES) -> bool:
        """Let the first of :meth:`victims` that is on the device leave it; false when there is
        none."""
        entry = next((each for each in self.victims(keep) if each.checkpoint.resident), None)
        if entry is None:
            return False
        self._leave_device(entry, keep)
        return True

    def make_room_to_suspend(self, lease: SlotLease) -> bool:
        """Drop as few as make room for the state of a sequence in host memory, in the order of
        :meth:`victims`; none if all of them would not. Those on the device take none there."""
        held = _on_the_host(self.victims())
        return self._drop_until(lambda gone: self._store.can_suspend(lease, gone), held)

    def drop(self, entry: StoredPrefix, reason: DropReason) -> None:
        del self._entries[entry]
        self.demoted.pop(entry, None)
        ends = self._ends[entry.key]
        ends.remove(entry)
        if not ends:
            del self._ends[entry.key]
        for key in self._keys(entry):
            holders = self._chunks[key]
            del holders[entry]
            if not holders:
                del self._chunks[key]
        self._tree.remove(entry)
        self.drops[reason] += 1
        self._store.drop(entry.checkpoint)

    def clear(self) -> None:
        """Drop everything, wherever it is: no stored state can be trusted any more."""
        for entry in list(self._entries):
            self.drop(entry, DropReason.FAULT)

    def send_away(self, entry: StoredPrefix, keep: Collection[StoredPrefix] = ()) -> bool:
        """Move a prefix on the device to host memory, where others but ``keep`` may have to go for
        it; false if there is no room."""
        if not self._make_host_room(entry, keep):
            return False
        self._store.demote(entry.checkpoint)
        self.demoted[entry] = None
        return True

    def make_host_room(
        self, fits: Callable[[], bool], spare: Callable[[StoredPrefix], bool]
    ) -> bool:
        """Drop ``spare`` prefixes in host memory, in the order of :meth:`victims`, until something
        ``fits``; false if it never does."""
        if fits():
            return True
        for entry in filter(spare, _on_the_host(self.victims())):
            self.drop(entry, DropReason.ROOM)
            if fits():
                return True
        return False

    # -- inside -------------------------------------------------------------------------------

    def _add(self, tokens: HashedTokens, checkpoint: Checkpoint, kind: PrefixKind) -> StoredPrefix:
        self._tick += 1
        entry = StoredPrefix.of(tokens, checkpoint, kind, self._tick)
        self._tree.add(entry, self._above(tokens, entry.length))
        self._entries[entry] = None
        ends = self._ends.setdefault(entry.key, [])
        ends.append(entry)
        ends.sort(key=lambda each: -each.length)
        for key in self._keys(entry):
            self._chunks.setdefault(key, {})[entry] = None
        return entry

    def _leave_device(self, entry: StoredPrefix, keep: Collection[StoredPrefix]) -> None:
        """Move a prefix to host memory, or drop it if there is no room for it."""
        if not self.send_away(entry, keep):
            self.drop(entry, DropReason.ROOM)

    def _make_host_room(self, entry: StoredPrefix, keep: Collection[StoredPrefix]) -> bool:
        """Drop as few of those on the host that go before an entry as make room for it there; none
        if all of them would not."""
        held = _on_the_host(takewhile(lambda each: each is not entry, self.victims(keep)))
        return self._drop_until(lambda gone: self._store.can_demote(entry.checkpoint, gone), held)

    def _drop_until(
        self, fits: Callable[[Sequence[Checkpoint]], bool], entries: list[StoredPrefix]
    ) -> bool:
        """Drop the first of ``entries`` until what is to fit does; none if it never would. ``fits``
        says so for the case that checkpoints were dropped."""
        if fits(()):
            return True
        held, few = [each.checkpoint for each in entries], 1
        # The host may hold many, and a few are usually enough.
        while not fits(held[:few]):
            if few >= len(held):
                return False
            few *= 2
        while not fits(()):
            self.drop(entries.pop(0), DropReason.ROOM)
        return True

    def _resident(self) -> list[StoredPrefix]:
        """Those on the device, the least recently used first."""
        return [each for each in self._entries if each.checkpoint.resident]

    def _above(self, tokens: HashedTokens, length: int) -> StoredPrefix | None:
        """The longest stored prefix that begins the first ``length`` tokens and is shorter."""
        for chunks in range(length // CHUNK_POSITIONS, -1, -1):
            for each in self._ends.get(tokens.chain[chunks], ()):
                if each.length < length and each.begins(tokens):
                    return each
        return None

    def _known(self, chain: list[int]) -> int:
        """Chunks of a prompt that a stored prefix may begin with: with ``any_chunk``, all hashes
        before a known one are known too."""
        if not self.any_chunk:
            return len(chain) - 1
        return bisect_left(range(1, len(chain)), 1, key=lambda n: chain[n] not in self._chunks)

    def _keys(self, entry: StoredPrefix) -> list[int]:
        """Hashes under which the chunks of a prefix are found by themselves."""
        chunks = entry.length // CHUNK_POSITIONS if self.any_chunk else 0
        return entry.tokens.chain[1 : chunks + 1]


def _leave_behind(entry: StoredPrefix, forks: Collection[int]) -> None:
    """A conversation has come to a new prefix: of those before it, only what its request named is
    expected to be branched off from again. So are no answers beside a new fork: the prompt that
    made it went on without them."""
    for each in entry.path():
        if each is not entry:
            each.expected = each.length in forks
    if entry.above is None or entry.kind is not PrefixKind.FORK:
        return
    stack = [each for each in entry.above.below if each is not entry]
    while stack:
        answer = stack.pop()
        if answer.kind is PrefixKind.END:
            answer.expected = False
            stack.extend(answer.below)


def _on_the_host(entries: Iterable[StoredPrefix]) -> list[StoredPrefix]:
    """Those that give host memory back when they are dropped: no disk reads or writes them."""
    return [each for each in entries if not each.checkpoint.resident and not each.checkpoint.pins]
