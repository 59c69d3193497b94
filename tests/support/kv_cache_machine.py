"""The machine of a KV cache: opens, steps, forks, checkpoints, evictions, demotions and releases in
any order, however late copies or steps are."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from lazy_streams import LazyCopies, LazyMain

from kinfolk.errors import PoolExhausted, StateError
from kinfolk.state.hashed_tokens import HashedTokens
from kinfolk.state.prefix import PrefixCache
from kinfolk.types import CHUNK_POSITIONS

STEP = 100
PLACES = 4 * 8
"""For compressed keys of all chunks of 500 positions in 4 slots, and of no prefix besides."""

LAYOUTS = [(None,), (70,), (None, 70), (None, 1, 200)]


class Life:
    """The test's own record of a sequence."""

    def __init__(self, lease, positions, history, resident=None):
        self.lease, self.positions, self.history = lease, positions, history
        self.resident = resident
        self.evicted: set[int] = set()
        self.fetched: set[int] = set()
        self.exact = True


class KVCacheMachine(RuleBasedStateMachine):
    def __init__(self, toy_type):
        super().__init__()
        self.toy_type = toy_type
        self.toy = None
        self.root = 0
        self.lives: list[Life] = []
        self.numbers = iter(range(1, 2**24))
        self.epochs: dict[int, int] = {}

    @initialize(
        windows=st.sampled_from(LAYOUTS),
        sizes=st.tuples(*[st.integers(7, 16)] * 3),
        recurrent=st.booleans(),
        host_rows=st.sampled_from([None, None, 0, 4, 16]),
        streams=st.sampled_from([LazyCopies, LazyMain]),
        digests=st.sampled_from([0, PLACES]),
        spare_slots=st.integers(0, 1),
    )
    def make(self, windows, sizes, recurrent, host_rows, streams, digests=0, spare_slots=0):
        self.toy = self.toy_type(
            windows=windows,
            blocks=sizes[: len(windows)],
            slots=4,
            checkpoints=3,
            spare_slots=spare_slots,
            step_rows=STEP,
            recurrent=recurrent,
            host_rows=host_rows,
            streams=streams(),
            digests=digests if windows[0] is None else 0,
        )
        self.kv_cache = self.toy.kv_cache
        self.cache = PrefixCache(self.kv_cache.checkpoints, 6)

    # -- sequences ------------------------------------------------------------------------

    @rule(
        positions=st.integers(1, 500),
        rows=st.integers(0, STEP),
        resident=st.none() | st.integers(3, 8),
        data=st.data(),
    )
    def open(self, positions, rows, resident, data):
        shorter = {key: start for key, start in self.cache.items() if len(key) < positions}
        key = data.draw(st.sampled_from([None, *sorted(shorter)]))
        start = None if key is None else shorter[key]
        length = len(key or ())
        if length > 1 and self.cache.any_chunk:
            length = data.draw(st.integers(1, length))
        if not self.kv_cache.can_open(positions, start, length, resident=resident):
            with pytest.raises(PoolExhausted):
                self.kv_cache.open(positions, start, length, resident=resident)
            return
        away = self.draw_away(data, length, resident)
        life = self.born(
            self.kv_cache.open(positions, start, length, resident=resident, away=away),
            positions,
            list((key or ())[:length]),
            resident,
        )
        life.evicted = set(away)
        life.exact = start is None or start.exact
        self.feed(life, min(rows, positions - len(life.history)))

    @precondition(lambda self: self.lives)
    @rule(data=st.data(), extra=st.integers(0, 200))
    def fork(self, data, extra):
        parent = data.draw(st.sampled_from(self.lives))
        positions = len(parent.history) + extra
        try:
            lease = self.kv_cache.tables.fork(parent.lease, positions)
        except PoolExhausted:
            return
        child = self.born(lease, positions, list(parent.history), parent.resident)
        child.exact, child.evicted = parent.exact, set(parent.evicted)

    @precondition(lambda self: self.lives)
    @rule(
        data=st.data(),
        share=st.floats(0.1, 1),
        rejected=st.integers(0, 20),
        mark=st.floats(0, 1),
    )
    def step(self, data, share, rejected, mark):
        """A slice, or a chain of drafts of which the last ``rejected`` are not kept.

        Within the promised length this never runs out of blocks, however they are shared.
        """
        life = data.draw(st.sampled_from(self.lives))
        rows = int(min(STEP, life.positions - len(life.history)) * share)
        self.feed(life, rows, rejected, mark)

    @precondition(lambda self: self.lives)
    @rule(data=st.data())
    def release(self, data):
        life = data.draw(st.sampled_from(self.lives))
        self.lives.remove(life)
        self.kv_cache.tables.release(life.lease)
        with pytest.raises(StateError, match="is over"):
            self.kv_cache.tables.advance(life.lease, len(life.history))

    # -- checkpoints ----------------------------------------------------------------------

    @precondition(lambda self: self.lives)
    @rule(data=st.data(), demoted=st.booleans(), ended=st.booleans())
    def checkpoint(self, data, demoted, ended):
        life = data.draw(st.sampled_from(self.lives))
        position = len(life.history)
        if self.cache.any_chunk and position >= CHUNK_POSITIONS:
            chunks = data.draw(st.integers(1, position // CHUNK_POSITIONS))
            position = data.draw(st.sampled_from([position, chunks * CHUNK_POSITIONS]))
        checkpoint = self.mark(life, position)
        if checkpoint is None:
            return
        self.cache.insert(HashedTokens(life.history[:position], root=self.root), checkpoint)
        if demoted and checkpoint.live and self.kv_cache.checkpoints.can_demote(checkpoint):
            self.kv_cache.checkpoints.demote(checkpoint)
        if ended:
            self.lives.remove(life)
            self.kv_cache.tables.release(life.lease)

    @precondition(lambda self: any(not held.resident for _, held in self.cache.items()))
    @rule(data=st.data(), more=st.integers(1, 200), rows=st.integers(0, 50))
    def come_back(self, data, more, rows):
        """A sequence starts from what is on the host only, beside whatever else is there."""
        held = self.cache.items()
        key = data.draw(st.sampled_from([key for key, each in held if not each.resident]))
        start, positions = dict(held)[key], len(key) + more
        if self.kv_cache.can_open(positions, start):
            life = self.born(self.kv_cache.open(positions, start), positions, list(key))
            life.exact = start.exact
            self.feed(life, min(rows, more))

    @precondition(lambda self: self.lives)
    @rule(data=st.data(), position=st.floats(0, 1))
    def make_room(self, data, position):
        """Prefixes leave the device only if a checkpoint can be taken then, and not if it could be
        before."""
        life = data.draw(st.sampled_from(self.lives))
        store = self.kv_cache.checkpoints
        if life.resident is not None:
            self.make_room_away(life)
            return
        first = [each for each in self.cache.victims() if each.checkpoint.resident]
        length = round(position * len(life.history))
        gone = [each.checkpoint for each in first]
        enough = (n for n in range(len(first) + 1) if store.can_take(life.lease, length, gone[:n]))
        least = next(enough, None)
        assert self.cache.make_room(life.lease, length) == (least is not None)
        left = [each.checkpoint for each in first if each.checkpoint.resident]
        assert [held for held in left if held.live] == gone[least or 0 :]
        assert store.can_take(life.lease, length) == (least is not None)

    def make_room_away(self, life):
        """Of a paged sequence: nothing is dropped if a checkpoint could be taken before."""
        store, length, before = self.kv_cache.checkpoints, len(life.history), len(self.cache)
        possible = store.can_take(life.lease, length)
        made = self.cache.make_room(life.lease, length)
        assert made == store.can_take(life.lease, length)
        assert len(self.cache) == before or (made and not possible)

    @rule(data=st.data())
    def evict_all_but_one(self, data):
        """The reclaimable blocks that the cache states are the blocks that come back."""
        kept = data.draw(st.sampled_from([None, *self.cache]))
        keep = None if kept is None else kept.checkpoint
        gain = self.cache.reclaimable(keep)
        pools = range(len(self.kv_cache.pools))
        before = [self.kv_cache.tables.available(pool) for pool in pools]
        while self.cache.evict_one({kept}):
            pass
        assert [each for each in self.cache if each.checkpoint.resident and each is not kept] == []
        assert kept is None or kept.checkpoint.live
        after = [self.kv_cache.tables.available(pool) for pool in pools]
        assert after == [b + g for b, g in zip(before, gain, strict=True)]

    @precondition(lambda self: any(held.resident for _, held in self.cache.items()))
    @rule(data=st.data())
    def demote(self, data):
        store, held = self.kv_cache.checkpoints, self.cache.items()
        checkpoint = data.draw(st.sampled_from([each for _, each in held if each.resident]))
        if store.can_demote(checkpoint):
            store.demote(checkpoint)
            return
        with pytest.raises(PoolExhausted, match="no host memory"):
            store.demote(checkpoint)
        assert checkpoint.resident

    # -- paging ---------------------------------------------------------------------------

    @precondition(lambda self: self.lives and self.kv_cache.pools[0].window is None)
    @rule(data=st.data())
    def evict(self, data):
        life = data.draw(st.sampled_from(self.lives))
        sealed = self.sealed(life)
        if sealed:
            some = st.lists(st.sampled_from(sealed), min_size=1, max_size=4, unique=True)
            self.try_to_evict(life, *data.draw(some))

    @precondition(lambda self: any(life.evicted for life in self.lives))
    @rule(data=st.data(), ahead=st.booleans())
    def recall(self, data, ahead):
        """At once, or fetched before: both as soon as one of its own blocks is free."""
        life = data.draw(st.sampled_from([life for life in self.lives if life.evicted]))
        chunk = data.draw(st.sampled_from(sorted(life.evicted)))
        tables = self.kv_cache.tables
        full = self.held(life) >= min(life.resident, -(-life.positions // CHUNK_POSITIONS))
        if chunk not in life.fetched:
            if full:
                with pytest.raises(PoolExhausted, match="evict another chunk first"):
                    tables.recall(life.lease, chunk)
                return
            if ahead:
                others = sorted(life.evicted - life.fetched - {chunk})
                room = min(life.resident, -(-life.positions // CHUNK_POSITIONS)) - self.held(life)
                chunks = {chunk, *others[: data.draw(st.integers(0, room - 1))]}
                tables.fetch(life.lease, *chunks)
                life.fetched |= chunks
                return
        others = sorted(life.fetched - {chunk})
        chunks = {chunk, *others[: data.draw(st.integers(0, len(others)))]}
        tables.recall(life.lease, *chunks)
        life.evicted -= chunks
        life.fetched -= chunks

    # -- faults -------------------------------------------------------------------------------

    @precondition(lambda self: self.lives)
    @rule(data=st.data(), rows=st.integers(1, STEP))
    def fault(self, data, rows):
        """A step whose operations fail half-way: all that was known is forgotten on both sides."""
        life = data.draw(st.sampled_from(self.lives))
        stop = min(len(life.history) + rows, life.positions)
        self.make_blocks(life, stop)
        self.kv_cache.tables.extend(life.lease, stop)
        for chunk in self.sealed(life):
            if self.kv_cache.pools[0].window is None:
                self.try_to_evict(life, chunk)
        operations = self.kv_cache.take_operations()
        self.toy.state.apply(operations[: data.draw(st.integers(0, len(operations)))])
        for each in self.lives:
            self.kv_cache.tables.release(each.lease)
        self.let_go()
        self.cache.clear()
        self.kv_cache.forget_operations()
        self.toy.state.forget()
        self.lives = []
        assert self.toy.state.saved_rows == 0

    # -- invariants -----------------------------------------------------------------------

    @invariant()
    def books_and_bytes_agree(self):
        if self.toy is None:
            return
        self.kv_cache.check_integrity()
        self.toy.apply()
        self.toy.state.check_integrity()
        assert self.toy.state.host.used_bytes <= self.kv_cache.host.used_bytes
        for life in self.lives:
            self.toy.check(life.lease, life.history)
            for index, pool in enumerate(self.kv_cache.pools):
                self.check_table(life, index, pool.window)

    def check_table(self, life, index, window):
        """Every position that the next row may see is in the table, unless it was evicted."""
        length = len(life.history)
        first = 0 if window is None else max(0, length - window + 1)
        wanted = set(range(first // CHUNK_POSITIONS, -(-length // CHUNK_POSITIONS)))
        evicted = life.evicted if window is None else set()
        assert wanted - evicted <= {n for n, _ in self.kv_cache.tables.table(life.lease, index)}

    def teardown(self):
        if self.toy is None:
            return
        for life in self.lives:
            self.kv_cache.tables.release(life.lease)
        self.let_go()
        self.cache.clear()
        self.kv_cache.check_integrity()
        self.toy.apply()
        assert self.toy.state.saved_rows == self.toy.state.host.used_bytes == 0
        assert self.kv_cache.host.used == self.kv_cache.host.rows == 0
        assert len(self.kv_cache.tables.free) == 4
        for index, pool in enumerate(self.kv_cache.pools):
            assert self.kv_cache.tables.available(index) == pool.size

    # -- helpers --------------------------------------------------------------------------

    def let_go(self):
        """Whoever else uses host memory has to stop."""

    def feed(self, life, rows, rejected=0, mark=None):
        if rows == 0:
            return
        start = len(life.history)
        kept = max(1, rows - rejected)
        self.make_blocks(life, start + rows)
        self.kv_cache.tables.extend(life.lease, start + rows)
        checkpoint = None
        if mark is not None and kept == rows and len(self.cache) < 6:
            checkpoint = self.mark(life, start + max(1, round(mark * rows)))
        self.toy.apply()
        numbers = [next(self.numbers) for _ in range(kept)]
        self.toy.write(life.lease, start, numbers + [0] * (rows - kept))
        life.exact = life.exact and not life.evicted
        life.history += numbers
        self.toy.set_sum(life.lease.slot, life.history)
        self.kv_cache.tables.advance(life.lease, start + kept)
        if checkpoint is not None:
            if checkpoint.slot:
                self.toy.set_sum(checkpoint.slot, life.history[: checkpoint.length])
            self.kv_cache.checkpoints.stored(checkpoint)
            self.cache.insert(HashedTokens(life.history, root=self.root), checkpoint)

    def born(self, lease, positions, history, resident=None):
        assert lease.epoch > self.epochs.get(lease.slot, 0)
        self.epochs[lease.slot] = lease.epoch
        life = Life(lease, positions, history, resident)
        self.lives.append(life)
        return life

    def try_to_evict(self, life, *chunks):
        if life.resident is None:
            with pytest.raises(StateError, match="all of them stay on the device"):
                self.kv_cache.tables.evict(life.lease, *chunks)
            return
        self.kv_cache.tables.evict(life.lease, *chunks)
        life.evicted |= set(chunks)

    def sealed(self, life):
        """Full chunks that may be evicted."""
        return sorted(set(range(len(life.history) // CHUNK_POSITIONS)) - life.evicted)

    def held(self, life):
        """Blocks of full attention that a sequence has, those of rejected rows too."""
        table = self.kv_cache.tables.table(life.lease, 0)
        return len(table) + len(life.fetched)

    def make_blocks(self, life, stop):
        """Evict chunks of a paged sequence until it has blocks for ``stop`` positions."""
        if life.resident is None or self.kv_cache.pools[0].window is not None:
            return
        chunks = -(-stop // CHUNK_POSITIONS)
        known = {n for n, _ in self.kv_cache.tables.table(life.lease, 0)} | life.evicted
        new = len(set(range(chunks)) - known)
        promised = min(life.resident, -(-life.positions // CHUNK_POSITIONS))
        while self.held(life) + new > promised:
            if life.fetched:
                chunk = min(life.fetched)
                self.kv_cache.tables.recall(life.lease, chunk)
                life.evicted.remove(chunk)
                life.fetched.remove(chunk)
            self.try_to_evict(life, self.sealed(life)[0])

    def draw_away(self, data, length, resident):
        """Full chunks that a paged sequence starts without, enough for its budget."""
        if resident is None or self.kv_cache.pools[0].window is not None:
            return ()
        full = range(length // CHUNK_POSITIONS)
        least = max(0, len(full) + (length % CHUNK_POSITIONS > 0) - resident)
        number = data.draw(st.integers(least, len(full)))
        return data.draw(st.permutations(full))[:number]

    def mark(self, life, position):
        if len(self.cache) >= 6 or not self.kv_cache.checkpoints.can_take(life.lease, position):
            return None
        if life.resident is None:
            assert life.exact
        checkpoint = self.kv_cache.checkpoints.take(life.lease, position)
        assert life.exact or not checkpoint.exact
        return checkpoint
