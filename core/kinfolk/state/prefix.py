"""Prefix cache: checkpoints by the tokens before them; the least recently used is dropped first.

A hybrid model can resume only where its recurrent state was stored, so a prefix is a checkpoint,
for every family alike. Torch-free.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

from kinfolk.state.checkpoint_store import CheckpointStore
from kinfolk.state.chunks import Checkpoint, SlotLease


class PrefixCache:
    """Checkpoints of one store, keyed by their token prefix."""

    def __init__(self, store: CheckpointStore, capacity: int) -> None:
        self._store = store
        self._capacity = capacity
        self._entries: OrderedDict[tuple[int, ...], Checkpoint] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, tokens: tuple[int, ...]) -> bool:
        return tokens in self._entries

    def items(self) -> list[tuple[tuple[int, ...], Checkpoint]]:
        """Prefixes and their checkpoints, the least recently used first."""
        return list(self._entries.items())

    def find(self, prompt: Sequence[int]) -> Checkpoint | None:
        """The longest checkpoint that leaves at least one token of ``prompt`` to compute."""
        lengths = sorted({len(key) for key in self._entries}, reverse=True)
        for length in lengths:
            if length >= len(prompt):
                continue
            key = tuple(prompt[:length])
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
        return None

    def insert(self, tokens: tuple[int, ...], checkpoint: Checkpoint) -> None:
        """Take over a checkpoint; a second one for the same tokens is dropped at once."""
        if tokens in self._entries or self._capacity == 0:
            self._store.drop(checkpoint)
            return
        while len(self._entries) >= self._capacity:
            self.evict_one()
        self._entries[tokens] = checkpoint

    def reclaimable(self, keep: Checkpoint | None = None) -> tuple[int, ...]:
        """Blocks of each pool that become available when all checkpoints but ``keep`` go.

        In a pool of full attention those are the blocks without another holder. In a windowed
        pool tables do not matter: a block that they hold too was charged for the checkpoints.
        """
        dropped = [held for held in self._entries.values() if held is not keep]
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
        """Drop as few of the least recently used as make a checkpoint of a sequence possible; none
        if all of them would not."""
        if self._store.can_take(lease, position):
            return True
        oldest = list(self._entries.values())
        if not self._store.can_take(lease, position, oldest):
            return False
        enough = 1
        while not self._store.can_take(lease, position, oldest[:enough]):
            enough += 1
        for _ in range(enough):
            self.evict_one()
        return True

    def evict_one(self) -> bool:
        """Drop the least recently used checkpoint; false when there is none."""
        if not self._entries:
            return False
        _, checkpoint = self._entries.popitem(last=False)
        self._store.drop(checkpoint)
        return True

    def clear(self) -> None:
        while self.evict_one():
            pass
