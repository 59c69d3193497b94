"""Any order of what the cache's machine does and of spills, fetches, faults and restarts keeps the
bytes right, however late copies are."""

from __future__ import annotations

import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from disk_scenes import LARGE, RECORD, files
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test
from kv_cache_machine import LAYOUTS, STEP, KVCacheMachine
from lazy_streams import LazyCopies, LazyMain

from kinfolk.engine.disk_tier import DiskTier
from kinfolk.state.disk import DiskCache
from kinfolk.state.hashed_tokens import HashedTokens
from kinfolk.state.prefix import DropReason

PATIENCE = 60.0


class DiskMachine(KVCacheMachine):
    def __init__(self, toy_type, folder):
        super().__init__(toy_type)
        self.folder = Path(tempfile.mkdtemp(dir=folder)) / "prefix"
        self.texts = {}
        self.ending = False

    @initialize(
        windows=st.sampled_from(LAYOUTS),
        sizes=st.tuples(*[st.integers(7, 16)] * 3),
        recurrent=st.booleans(),
        host_rows=st.sampled_from([None, None, 16, 40]),
        streams=st.sampled_from([LazyCopies, LazyMain]),
    )
    def make(self, windows, sizes, recurrent, host_rows, streams):
        self.options = (windows, sizes, recurrent, host_rows, streams)
        super().make(*self.options)
        self.open_disk()

    def open_disk(self):
        cache = DiskCache.open(self.folder, RECORD, LARGE)
        state = self.toy.state
        runner = SimpleNamespace(state=state, apply=state.apply, take_arrived=self.take_arrived)
        self.tier = DiskTier(cache, self.kv_cache, self.cache, runner, threading.Condition())
        self.books, self.root = self.tier.books, self.tier.root
        self.scheduler = SimpleNamespace(
            running=0, spilled=self.books.spilled, fetched=self.books.fetched
        )

    # -- the disk -------------------------------------------------------------------------

    @rule(rows=st.lists(st.integers(1, STEP), min_size=1, max_size=3), data=st.data())
    def say(self, rows, data):
        """A sequence from nothing or from what memory has, which leaves a checkpoint and ends."""
        text = data.draw(st.sampled_from([(), *sorted(key for key, _ in self.cache.items())]))
        prompt = HashedTokens((*text, -1), root=self.root)
        match = self.cache.find(prompt)
        start, length = (None, 0) if match is None else (match.checkpoint, match.length)
        positions = length + sum(rows)
        if not self.kv_cache.can_open(positions, start, length):
            return
        lease = self.kv_cache.open(positions, start, length)
        life = self.born(lease, positions, list(text[:length]))
        for count in rows:
            self.feed(life, count)
        checkpoint = self.mark(life, len(life.history))
        if checkpoint is not None:
            self.cache.insert(HashedTokens(life.history, root=self.root), checkpoint)
        self.lives.remove(life)
        self.kv_cache.tables.release(life.lease)

    @rule()
    def settle(self):
        """Everything that is wanted gets to the disk."""
        self.ending = True
        for _ in range(4):
            self.spill(idle=True)
            self.the_disk_is_done()
        self.ending = False

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), forgotten=st.booleans())
    def go_on(self, data, forgotten):
        """A request that waits for the disk, beside what memory has, or after that is forgotten."""
        text = data.draw(st.sampled_from(sorted(self.texts)))
        if forgotten:
            for entry in list(self.cache):
                self.cache.drop(entry, DropReason.ROOM)
        prompt = HashedTokens((*text, -1), root=self.root)
        self.books.fetch((prompt, self.cache.find(prompt)))
        self.toy.apply()
        self.copies_are_done()
        self.the_disk_is_done()
        match = self.cache.find(prompt)
        positions = len(text) + 50
        if match and self.kv_cache.can_open(positions, match.checkpoint, match.length):
            lease = self.kv_cache.open(positions, match.checkpoint, match.length)
            self.born(lease, positions, list(text[: match.length]))

    @rule(idle=st.booleans())
    def spill(self, idle):
        self.remember()
        self.tier.rest(self.scheduler, 1000.0 if idle else 0.0)

    @rule()
    def copies_are_done(self):
        self.toy.state.copies.drain()
        self.tier.take(self.scheduler)

    @rule()
    def the_disk_is_done(self):
        self.wait()
        self.tier.take(self.scheduler)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), more=st.integers(1, 100))
    def fetch(self, data, more):
        text = data.draw(st.sampled_from(sorted(self.texts)))
        prompt = HashedTokens((*text, *range(-more, 0)), root=self.root)
        self.books.fetch((prompt, self.cache.find(prompt)))

    @precondition(lambda self: self.texts)
    @rule(data=st.data())
    def damage(self, data):
        """Wait for the disk first, as tests of damage under its hands are elsewhere."""
        self.wait()
        found = [path for path in files(self.folder) if path.parent.name in ("chunks", "points")]
        if found:
            path = data.draw(st.sampled_from(sorted(found)))
            content = bytearray(path.read_bytes())
            content[data.draw(st.integers(0, len(content) - 1))] ^= 4
            path.write_bytes(content)

    @rule(whole=st.booleans())
    def restart(self, whole):
        """Another process goes on; ``whole``: this one ended in order."""
        self.remember()
        for life in self.lives:
            self.kv_cache.tables.release(life.lease)
        self.lives, self.epochs = [], {}
        if not whole:
            self.tier.abort()
        self.ending = True
        self.tier.finish(self.scheduler)
        self.ending = False
        self.let_go()
        self.cache.clear()
        self.kv_cache.check_integrity()
        self.toy.apply()
        assert self.toy.state.saved_rows == self.kv_cache.host.used == 0
        self.make(*self.options)

    # -- helpers --------------------------------------------------------------------------

    def take_arrived(self):
        """At the end copies are done some time: it waits for them."""
        if self.ending:
            self.toy.state.copies.drain()
        return self.toy.state.take_arrived()

    def let_go(self):
        self.tier.forget()
        self.books.forget()
        assert not self.kv_cache.checkpoints.pins

    def teardown(self):
        super().teardown()
        if self.toy is not None:
            self.tier.thread.close(flush=False)

    def remember(self):
        for text, _ in self.cache.items():
            self.texts[text] = None

    def wait(self):
        deadline = time.monotonic() + PATIENCE
        while self.tier.thread.pending:
            assert time.monotonic() < deadline
            time.sleep(0.0005)


def run(state_toys, folder, examples):
    run_state_machine_as_test(
        partial(DiskMachine, state_toys.ToyCache, folder),
        settings=settings(max_examples=examples, stateful_step_count=40, deadline=None),
    )


def test_what_comes_from_the_disk_is_what_was_written_in_any_order_of_events(state_toys, tmp_path):
    run(state_toys, tmp_path, 30)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_what_comes_from_the_disk_is_what_was_written_in_many_orders(state_toys, tmp_path):
    run(state_toys, tmp_path, 3000)
