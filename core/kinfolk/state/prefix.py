"""Prefix cache: checkpoints by the tokens before them; the least recently used goes first.

A hybrid model can resume only where its recurrent state was stored, so a prefix is a checkpoint,
for every family alike. What leaves the device goes to host memory if there is room. Torch-free.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import takewhile

from kinfolk.state.checkpoint_store import CheckpointStore
from kinfolk.state.chunks import Checkpoint, SlotLease
from kinfolk.state.hashed_tokens import CHUNK_BYTES, TOKEN_BYTES, HashedTokens
from kinfolk.types import CHUNK_POSITIONS


@dataclass(eq=False, slots=True)
class StoredPrefix:
    """A checkpoint, and ``tokens`` of which the first ``length`` are those before it.

    ``key`` is the hash of its full chunks, ``tail`` packed tokens behind them, from the byte
    ``start`` on.
    """

    tokens: HashedTokens
    checkpoint: Checkpoint
    length: int
    key: int
    start: int
    tail: bytes

    @classmethod
    def of(cls, tokens: HashedTokens, checkpoint: Checkpoint) -> StoredPrefix:
        length = checkpoint.length
        chunks, stop = length // CHUNK_POSITIONS, length * TOKEN_BYTES
        start = chunks * CHUNK_BYTES
        key, tail = tokens.chain[chunks], tokens.packed[start:stop]
        return cls(tokens, checkpoint, length, key, start, tail)

    def begins(self, prompt: HashedTokens) -> bool:
        """Whether a prompt begins with these tokens. Those behind the full chunks are compared
        first: prefixes with the same hash differ there."""
        return prompt.packed.startswith(self.tail, self.start) and prompt.starts_like(
            self.tokens, self.length
        )


class PrefixCache:
    """Checkpoints of one store by their token prefixes, which are indexed by their full chunks.

    At most ``capacity`` of them are on the device; how many are in host memory depends on its room.
    """

    def __init__(self, store: CheckpointStore, capacity: int) -> None:
        self._store = store
        self._capacity = capacity
        self._entries: dict[StoredPrefix, None] = {}
        self._index: dict[int, list[StoredPrefix]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def items(self) -> list[tuple[tuple[int, ...], Checkpoint]]:
        """Prefixes and their checkpoints, the least recently used first."""
        return [(each.tokens.prefix(each.length), each.checkpoint) for each in self._entries]

    def holds(self, tokens: HashedTokens, length: int) -> bool:
        """Whether there is a checkpoint after exactly the first ``length`` tokens."""
        return any(
            each.length == length and each.begins(tokens)
            for each in self._index.get(tokens.chain[length // CHUNK_POSITIONS], ())
        )

    def find(self, prompt: HashedTokens) -> Checkpoint | None:
        """The longest checkpoint that leaves at least one token of ``prompt`` to compute.

        Takes a look at each chunk of the prompt, however many checkpoints there are. A hash is only
        a hint: tokens are compared before a checkpoint is believed to fit.
        """
        longest = len(prompt) - 1
        for key in reversed(prompt.chain):
            for each in self._index.get(key, ()):
                if each.length <= longest and each.begins(prompt):
                    self._entries[each] = self._entries.pop(each)
                    return each.checkpoint
        return None

    def insert(self, tokens: HashedTokens, checkpoint: Checkpoint) -> None:
        """Take over a checkpoint behind the first of ``tokens``; a second one for the same prefix
        is dropped at once."""
        if self.holds(tokens, checkpoint.length) or self._capacity == 0:
            self._store.drop(checkpoint)
            return
        while len(self._resident()) >= self._capacity:
            self.evict_one()
        entry = StoredPrefix.of(tokens, checkpoint)
        self._entries[entry] = None
        bucket = self._index.setdefault(entry.key, [])
        bucket.append(entry)
        bucket.sort(key=lambda each: -each.length)

    def reclaimable(self, keep: Checkpoint | None = None) -> tuple[int, ...]:
        """Blocks of each pool that become available when all checkpoints but ``keep`` leave the
        device.

        In a pool of full attention those are the blocks without another holder. In a windowed
        pool tables do not matter: a block that they hold too was charged for the checkpoints.
        """
        dropped = [each.checkpoint for each in self._resident() if each.checkpoint is not keep]
        gain = []
        for index, pool in enumerate(self._store.pools):
            counts = Counter(
                chunk.identity for held in dropped for chunk in held.chunks[index].values()
            )
            held_by = {
                chunk.identity: chunk.refs if pool.window is None else chunk.kept
                for held in dropped
                for chunk in held.chunks[index].values()
            }
            gain.append(sum(held_by[identity] == count for identity, count in counts.items()))
        return tuple(gain)

    def make_room(self, lease: SlotLease, position: int) -> bool:
        """Let as few of the least recently used leave the device as make a checkpoint of a sequence
        possible; none if all of them would not."""
        if self._store.can_take(lease, position):
            return True
        oldest = [each.checkpoint for each in self._resident()]
        if not self._store.can_take(lease, position, oldest):
            return False
        enough = 1
        while not self._store.can_take(lease, position, oldest[:enough]):
            enough += 1
        for _ in range(enough):
            self.evict_one()
        return True

    def evict_one(self) -> bool:
        """Let the least recently used checkpoint on the device leave it; false when there is none.

        It is dropped if the host has no room for it, even without those that were used before it.
        """
        entry = next(iter(self._resident()), None)
        if entry is None:
            return False
        if self._make_host_room(entry):
            self._store.demote(entry.checkpoint)
        else:
            self._drop(entry)
        return True

    def clear(self) -> None:
        """Drop all, wherever they are."""
        for entry in list(self._entries):
            self._drop(entry)

    def _make_host_room(self, entry: StoredPrefix) -> bool:
        """Drop as few of those that were used before an entry as make room for it on the host; none
        if all of them would not."""
        checkpoint, few = entry.checkpoint, 1
        if self._store.can_demote(checkpoint):
            return True
        older = list(takewhile(lambda each: each is not entry, self._entries))
        held = [each.checkpoint for each in older]
        # The host may hold many, and a few are usually enough.
        while not self._store.can_demote(checkpoint, held[:few]):
            if few >= len(held):
                return False
            few *= 2
        while not self._store.can_demote(checkpoint):
            self._drop(older.pop(0))
        return True

    def _resident(self) -> list[StoredPrefix]:
        """Those on the device, the least recently used first."""
        return [each for each in self._entries if each.checkpoint.resident]

    def _drop(self, entry: StoredPrefix) -> None:
        del self._entries[entry]
        bucket = self._index[entry.key]
        bucket.remove(entry)
        if not bucket:
            del self._index[entry.key]
        self._store.drop(entry.checkpoint)
