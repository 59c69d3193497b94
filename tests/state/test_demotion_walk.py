"""Long walks of steps, demotions and returns: bytes are right however late copies or steps are.

The walk knows what every sequence and checkpoint must hold. After each change the books are
recounted, and what the next step would read is compared.
"""

from __future__ import annotations

import random

import pytest
from lazy_streams import LazyCopies, LazyMain

from kinfolk.types import CHUNK_POSITIONS

STEPS, ROWS = 120, 90


class Walk:
    def __init__(self, toy, seed: int) -> None:
        self.toy, self.kv_cache, self.random = toy, toy.kv_cache, random.Random(seed)
        self.lives: list[tuple] = []
        self.kept: list[tuple] = []
        self.opened = self.numbers = 0

    def run(self) -> None:
        changes = [self.grow] * 4 + [self.open, self.open, self.back, self.back, self.back]
        changes += [self.keep, self.keep, self.demote, self.demote, self.demote, self.end, self.end]
        changes += [self.drop, self.evict, self.recall, self.fork]
        for _ in range(STEPS):
            self.random.choice(changes)()
            self.kv_cache.check_integrity()
            if self.random.random() < 0.4:
                self.look()
        self.look()

    def look(self) -> None:
        self.toy.apply()
        for lease, history, *_ in self.lives:
            self.toy.check(lease, history)

    def open(self, start=None) -> None:
        history = [] if start is None else list(start[1])
        positions = len(history) + self.random.randint(1, 300)
        checkpoint = None if start is None else start[0]
        resident = self.random.choice([None, None, 5])
        if self.kv_cache.can_open(positions, checkpoint, resident=resident):
            self.opened += checkpoint is not None and not checkpoint.resident
            full, partial = divmod(len(history), CHUNK_POSITIONS)
            away = [] if resident is None else range(full - resident + (partial > 0) + 1)
            lease = self.kv_cache.open(positions, checkpoint, resident=resident, away=away)
            self.lives.append((lease, history, positions))
            follow = self.random.choice([self.grow, self.grow, self.fork, self.keep, None])
            if follow is not None:
                follow(self.lives[-1])

    def back(self) -> None:
        if self.kept:
            self.open(self.random.choice(self.kept))

    def grow(self, life=None) -> None:
        if not self.lives:
            return
        lease, history, positions = life or self.random.choice(self.lives)
        start = len(history)
        rows = min(self.random.randint(0, ROWS), positions - start)
        if not rows:
            return
        self.make_blocks(lease, start + rows)
        self.kv_cache.tables.extend(lease, start + rows)
        inside = start + self.random.randint(1, rows)
        checkpoint = self.take(lease, inside) if self.random.random() < 0.4 else None
        self.toy.apply(step_follows=True)
        added = list(range(self.numbers, self.numbers + rows))
        self.numbers += rows
        self.toy.write(lease, start, added)
        history += added
        self.toy.set_sum(lease.slot, history)
        self.kv_cache.tables.advance(lease, len(history))
        if checkpoint is not None:
            if checkpoint.slot:
                self.toy.set_sum(checkpoint.slot, history[:inside])
            self.kv_cache.checkpoints.stored(checkpoint)
            self.kept.append((checkpoint, history[:inside]))

    def take(self, lease, position):
        """A checkpoint, for which the oldest on the device may leave it."""
        store = self.kv_cache.checkpoints
        while not store.can_take(lease, position):
            oldest = next((each for each in self.kept if each[0].resident), None)
            if oldest is None:
                return None
            self.leave(oldest)
        return store.take(lease, position)

    def leave(self, kept) -> None:
        """A checkpoint goes to the host, for which others may be dropped, or is dropped itself."""
        store = self.kv_cache.checkpoints
        if self.random.random() < 0.3:
            others = [each for each in self.kept if each is not kept and self.random.random() < 0.3]
            possible = store.can_demote(kept[0], [checkpoint for checkpoint, _ in others])
            for each in others:
                self.kept.remove(each)
                store.drop(each[0])
            assert store.can_demote(kept[0]) == possible
        if store.can_demote(kept[0]):
            store.demote(kept[0])
        else:
            self.kept.remove(kept)
            store.drop(kept[0])

    def fork(self, life=None) -> None:
        if self.lives:
            lease, history, positions = life or self.random.choice(self.lives)
            tables = self.kv_cache.tables
            shared, resident = len(history) // CHUNK_POSITIONS, tables.sequence(lease).resident
            if tables.can_open(positions, shared, resident, shared if resident else 0):
                self.lives.append((tables.fork(lease, positions), list(history), positions))

    def keep(self, life=None) -> None:
        if self.lives:
            lease, history, _ = life or self.random.choice(self.lives)
            checkpoint = self.take(lease, len(history))
            if checkpoint is not None:
                self.kept.append((checkpoint, list(history)))

    def demote(self) -> None:
        resident = [each for each in self.kept if each[0].resident]
        if resident:
            self.leave(self.random.choice(resident))

    def end(self) -> None:
        if self.lives:
            life = self.lives.pop(self.random.randrange(len(self.lives)))
            self.kv_cache.tables.release(life[0])

    def drop(self) -> None:
        if self.kept:
            kept = self.kept.pop(self.random.randrange(len(self.kept)))
            self.kv_cache.checkpoints.drop(kept[0])

    def evict(self) -> None:
        """Of a paged sequence."""
        paged = [life for life in self.lives if self.is_paged(life[0])]
        if paged:
            lease, history, _ = self.random.choice(paged)
            self.evict_one(lease, len(history))

    def evict_one(self, lease, length) -> None:
        entries = self.kv_cache.tables.sequence(lease).tables[0]
        full = [n for n in range(length // CHUNK_POSITIONS) if entries[n].resident]
        if full:
            self.kv_cache.tables.evict(lease, self.random.choice(full))

    def is_paged(self, lease) -> bool:
        tables = self.kv_cache.tables
        return tables.sequence(lease).paged and tables.pools[0].window is None

    def make_blocks(self, lease, stop) -> None:
        """Evict chunks of a paged sequence until it has blocks for ``stop`` positions."""
        if not self.is_paged(lease):
            return
        seq = self.kv_cache.tables.sequence(lease)
        new = -(-stop // CHUNK_POSITIONS) - len(seq.tables[0])
        while len(seq.tables[0]) - seq.evicted + seq.fetched + new > seq.promised[0]:
            self.evict_one(lease, seq.length)

    def recall(self) -> None:
        """Now, or fetched now for later."""
        for lease, _, _ in self.lives:
            tables = self.kv_cache.tables
            seq = tables.sequence(lease)
            for number in self.random.sample(sorted(tables.away(lease)), seq.evicted):
                if seq.tables[0][number].fetched:
                    tables.recall(lease, number)
                elif len(seq.tables[0]) - seq.evicted + seq.fetched < seq.promised[0]:
                    self.random.choice([tables.fetch, tables.recall])(lease, number)

    def finish(self) -> None:
        while self.lives:
            self.end()
        while self.kept:
            self.drop()
        self.kv_cache.check_integrity()
        self.toy.apply()


@pytest.mark.parametrize("walks", [6, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize("streams", [LazyCopies, LazyMain])
@pytest.mark.parametrize("windows", [(None,), (70,), (None, 70)], ids=str)
def test_bytes_are_right_however_late_copies_or_steps_are(make_toy_cache, windows, streams, walks):
    returns = 0
    for seed in range(walks):
        toy = make_toy_cache(
            windows=windows,
            blocks=(14, 12)[: len(windows)],
            checkpoints=2,
            spare_slots=seed % 2,
            slots=4,
            step_rows=ROWS,
            host_rows=(None, 24, 9)[seed % 3],
            streams=streams(),
        )
        walk = Walk(toy, seed)
        walk.run()
        returns += walk.opened
        walk.finish()
        assert toy.kv_cache.host.used == toy.kv_cache.host.rows == 0
        assert toy.state.saved_rows == toy.state.host.used_bytes == 0
        assert len(toy.kv_cache.checkpoints.free) == 2 + seed % 2
        for pool in toy.kv_cache.pools:
            assert toy.kv_cache.tables.available(pool.index) == pool.size == len(pool.free)
    assert returns > 2 * walks
