"""Sequences that another model reads along: which slices of which one a step has."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.compress.back_off import BackOff
from kinfolk.plans import StateLimits
from kinfolk.residency.read_tokens import SameTokens
from kinfolk.sched.chunk_reading import ChunkReading
from kinfolk.sched.limits import ScoringLimits
from kinfolk.sched.plan import CHUNK_SCORER_MODEL, ReadingResult
from kinfolk.sched.request import Request, Sequence
from kinfolk.state.chunks import SlotLease
from kinfolk.state.kv_cache_manager import KVCacheManager
from kinfolk.types import CHUNK_POSITIONS

CONTEXT, SLICE, LEAST, SLOTS = 512, 32, 8, 3


class Scene:
    """A reading, its time in seconds, and sequences. A token's score is its own number."""

    def __init__(self):
        blocks = SLOTS * CONTEXT // CHUNK_POSITIONS
        limits = StateLimits(SLOTS, 0, (blocks,), CONTEXT, SLICE)
        kv_cache = KVCacheManager((None,), limits, recurrent=True)
        self.now = 0.0
        self.reading = ChunkReading(
            ScoringLimits(CONTEXT, SLICE, LEAST, 1000, 0),
            kv_cache,
            lambda: SameTokens(1000),
            BackOff(lambda: self.now),
        )
        self.slots = itertools.count(1)
        self.sequences = {}

    def start(self, name, length, first=0):
        request = Request(name, tuple(range(first, first + length)), 400)
        sequence = Sequence(request, 0, lease=SlotLease(next(self.slots), 0))
        self.sequences[name] = sequence
        self.reading.started(sequence)
        return sequence

    def step(self, error=None):
        """A step. Returns what was read, and the answers."""
        planned = self.reading.plan()
        if planned is None:
            return None, []
        item = planned.item
        assert item.model == CHUNK_SCORER_MODEL
        scores = None
        if planned.is_last:
            sequence = self.sequences[item.request_id]
            scores = np.array(sequence.known[: planned.length], np.float32)
        result = ReadingResult(item.request_id, scores, error, CHUNK_SCORER_MODEL)
        return item, self.reading.commit(result)


def means(chunks):
    return tuple(chunk * 64 + 31.5 for chunk in range(chunks))


@given(
    prompt=st.integers(1, 300),
    asks=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    ahead=st.lists(st.integers(0, 12), min_size=6, max_size=6),
)
def test_where_slices_end_depends_on_the_sequence_alone(prompt, asks, ahead):
    """However much was read before scores are asked for, slices are the same."""

    def slices(steps):
        scene = Scene()
        sequence = scene.start("a", prompt)
        found, unread = [], prompt
        for new, before in zip(asks, steps, strict=False):
            for _ in range(before):
                item, answers = scene.step()
                assert not answers, "nobody asked"
                found += [] if item is None else [(item.start, item.tokens)]
            chunks = len(sequence.known) // CHUNK_POSITIONS
            assert scene.reading.ask(sequence, chunks) is None
            answers = []
            while not answers:
                item, answers = scene.step()
                found.append((item.start, item.tokens))
            assert [answer.values for answer in answers] == [means(chunks)]
            assert len(found[-1][1]) >= min(LEAST, unread), "enough rows score"
            unread = new
            sequence.known += range(len(sequence.known), len(sequence.known) + new)
        read = [token for _, tokens in found for token in tokens]
        assert read == sequence.known[: len(read)], "each token once, in order"
        assert all(len(tokens) <= SLICE for _, tokens in found)
        scene.reading.ended(sequence)
        scene.reading.kv_cache.check_integrity()
        assert len(scene.reading.kv_cache.tables.free) == SLOTS
        return found

    assert slices(ahead) == slices([0] * 6)


def test_those_who_wait_have_a_slice_in_turn_and_come_before_those_read_ahead():
    scene = Scene()
    a, b = (scene.start(name, 200) for name in "ab")
    scene.start("c", 200)
    assert scene.reading.ask(a, 3) is None
    assert scene.reading.ask(b, 3) is None
    order = [scene.step()[0].request_id for _ in range(14)]
    assert order == ["a", "b"] * 7
    assert scene.step()[0].request_id == "c"


def test_nothing_new_means_that_all_stays():
    scene = Scene()
    a = scene.start("a", 70)
    assert scene.reading.ask(a, 1) is None
    while not scene.step()[1]:
        pass
    assert scene.reading.ask(a, 1).keep
    assert not scene.reading.busy


def test_after_an_error_all_who_wait_have_an_answer_and_the_next_try_waits(caplog):
    scene = Scene()
    a, b = (scene.start(name, 100) for name in "ab")
    for each in (a, b):
        assert scene.reading.ask(each, 1) is None
    scene.step()
    _, answers = scene.step(error="broken")
    assert [answer.values for answer in answers] == [None, None]
    assert not scene.reading.busy
    assert len(scene.reading.kv_cache.tables.free) == SLOTS
    assert scene.reading.ask(a, 1).values is None, "it is not tried now"
    scene.now = 1.5
    assert scene.reading.ask(a, 1) is None
    answers = []
    while not answers:
        item, answers = scene.step()
        assert item.request_id in "ab"
    assert answers[0].values == means(1), "it is read again from its beginning"
    assert scene.reading.stats()["kvflash_reading_failures"] == 2
    assert len(caplog.records) == 1
    assert "broken" in caplog.text


def test_a_sequence_that_cannot_be_read_is_answered_and_harms_no_other(caplog):
    scene = Scene()
    unknown, fine = scene.start("a", 100, first=950), scene.start("b", 70)
    long = scene.start("c", CONTEXT + 1)
    assert scene.reading.ask(unknown, 1).values is None
    assert scene.reading.ask(long, 1).values is None
    assert scene.reading.ask(fine, 1) is None
    answers = []
    while not answers:
        _, answers = scene.step()
    assert answers[0].values == means(1)
    assert "token 1049 is outside of the vocabulary" in caplog.text


def test_one_that_ends_while_it_is_read_gives_its_place_back():
    scene = Scene()
    a = scene.start("a", 100)
    assert scene.reading.ask(a, 1) is None
    planned = scene.reading.plan()
    scene.reading.ended(a)
    assert scene.reading.commit(ReadingResult("a", model=CHUNK_SCORER_MODEL)) == []
    assert planned.item.start == 0
    assert not scene.reading.busy
    assert len(scene.reading.kv_cache.tables.free) == SLOTS
