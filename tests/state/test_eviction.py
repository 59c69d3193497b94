"""Which stored prefix goes first: by rank, then by tokens x hits over bytes and age."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kinfolk.state.chunks import Checkpoint
from kinfolk.state.eviction import PrefixBytes, Rank, rank_of, worth
from kinfolk.state.hashed_tokens import HashedTokens
from kinfolk.state.prefix import DropReason, PrefixCache
from kinfolk.state.stored_prefix import PrefixKind, PrefixTree, StoredPrefix

COMMON, FORK, END = PrefixKind.COMMON, PrefixKind.FORK, PrefixKind.END
GRID, CHOICES = PrefixKind.GRID, PrefixKind.CHOICES
SYSTEM = tuple(range(100))
SIZE = PrefixBytes(recurrent=1000, blocks=((None, 100), (128, 10)))


class Shelf:
    """A prefix cache whose checkpoints hold nothing, and what became of them."""

    def __init__(self, capacity=100, *, any_chunk=False):
        self.dropped = []
        store = SimpleNamespace(
            drop=self.dropped.append,
            can_demote=lambda *_: False,  # there is no host memory
            any_chunk=any_chunk,
            recurrent=not any_chunk,
            pools=(),
        )
        self.cache = PrefixCache(store, capacity, SIZE)

    def put(self, tokens, kind=FORK, forks=(), start=None):
        checkpoint = Checkpoint(len(tokens), 0, ())
        self.cache.insert(HashedTokens(tokens), checkpoint, kind, forks=forks, start=start)
        return self.cache.at(HashedTokens(tokens), len(tokens))

    def start(self, prompt):
        found = self.cache.find(HashedTokens(prompt))
        self.cache.started(found)
        return None if found is None else found.entry

    def turn(self, header, answer, forks, *, keeps=True):
        """A chat's request: it starts from what is stored, and leaves its header and its end."""
        start = self.start((*header, 10**6))
        for length in forks:
            if length > (0 if start is None else start.length):
                kind = FORK if length == max(forks) else COMMON
                self.put(header[:length], kind, forks, start)
        if keeps:
            self.put((*header, *answer), END, forks, start)
        return start

    def lengths(self):
        return sorted(each.length for each in self.cache)

    def ranks(self):
        return {
            each.length: rank_of(each, any_chunk=self.cache.any_chunk).name for each in self.cache
        }


def chat(seed, turns):
    """Headers and answers of a chat whose template rewrites answers: 20 tokens a turn, of which
    the next one keeps other tokens than were generated."""
    text = list(SYSTEM)
    for turn in range(turns):
        text += [seed * 1000 + turn * 20 + i for i in range(20)]
        yield tuple(text), (seed * 1000 + 999,) * 30
        text += [seed * 1000 + 500 + turn * 20 + i for i in range(10)]


def test_a_chat_leaves_its_past_behind():
    here = Shelf()
    for header, answer in chat(1, 3):
        here.turn(header, answer, (100, len(header)))
    ranks = {(each.length, each.kind): rank_of(each, any_chunk=False) for each in here.cache}
    assert ranks == {
        (100, COMMON): Rank.LIVE,
        (120, FORK): Rank.BEHIND,
        (150, END): Rank.BEHIND,
        (150, FORK): Rank.BEHIND,
        (180, END): Rank.BEHIND,
        (180, FORK): Rank.LIVE,
        (210, END): Rank.LIVE,
    }


def test_the_place_of_the_next_turn_outlives_a_hundred_of_another_chat():
    """Two chats of which one goes on: the other one's header and the system prompt stay."""
    here = Shelf(capacity=6)
    quiet, busy = list(chat(1, 2)), list(chat(2, 100))
    here.turn(*quiet[0], (100, 120))
    for header, answer in busy:
        here.turn(header, answer, (100, len(header)))
        assert here.start(header).length >= len(header) - 30
    assert here.turn(*quiet[1], (100, 150)).length == 120


def test_in_a_tool_loop_the_header_of_the_question_is_expected_until_the_next_question():
    """Requests of the loop start from the end of the answer before, and name the same fork."""
    here = Shelf()
    text = (*SYSTEM, *range(500, 520))
    for step in range(4):
        here.turn(text, (step + 1,) * 10, (120,))
        text = (*text, *(step + 1,) * 10, 7, 8)
    ranks = here.ranks()
    assert ranks.pop(120) == "LIVE"
    assert [ranks[n] for n in sorted(ranks)] == ["BEHIND"] * 3 + ["LIVE"]
    following = (*SYSTEM, *range(500, 520), 600, 601, 602)
    assert here.turn(following, (1, 2), (len(following),)).length == 120
    assert here.ranks()[120] == "BEHIND"
    assert {here.ranks()[n] for n in ranks} == {"BEHIND"}


def test_a_system_prompt_of_two_chats_goes_last():
    here = Shelf()
    for seed in (1, 2):
        for header, answer in chat(seed, 2):
            here.turn(header, answer, (100, len(header)))
    assert here.cache.victims()[-1].length == 100
    assert here.ranks()[100] == "SHARED"


def test_answers_to_one_prompt_do_not_make_it_shared():
    here = Shelf()
    header = here.put(SYSTEM)
    for answer in range(5):
        here.put((*SYSTEM, answer, 1), END, forks=(100,))
    assert rank_of(header, any_chunk=False) is Rank.LIVE


def test_points_on_the_grid_go_first_until_somebody_starts_from_one():
    here = Shelf()
    here.put(tuple(range(200)), GRID)
    here.put(tuple(range(300)), GRID)
    here.put((5, 6, 7))
    assert here.ranks() == {200: "SPARE", 300: "SPARE", 3: "LIVE"}
    here.start(tuple(range(350)))
    assert here.ranks() == {200: "SPARE", 300: "LIVE", 3: "LIVE"}
    assert here.cache.victims()[0].length == 200


def test_a_fork_at_a_point_of_the_grid_is_a_fork():
    here = Shelf()
    entry = here.put(SYSTEM, GRID)
    assert here.cache.rename(entry.tokens, 100, FORK)
    assert entry.kind is FORK
    assert here.cache.rename(entry.tokens, 100, GRID)
    assert entry.kind is FORK
    assert not here.cache.rename(entry.tokens, 99, FORK)


def test_what_is_covered_by_a_longer_prefix_goes_first_where_any_chunk_matches():
    for any_chunk in (True, False):
        here = Shelf(any_chunk=any_chunk)
        here.put(SYSTEM, forks=(100,))
        here.put((*SYSTEM, 1, 2), forks=(100,))
        assert here.ranks()[100] == ("COVERED" if any_chunk else "LIVE")


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"tokens": 200}, {"tokens": 100}),
        ({"hits": 1}, {"hits": 0}),
        ({"used": 9}, {"used": 5}),
        ({"hits": 3, "used": 4}, {"hits": 0, "used": 8}),
    ],
)
def test_more_tokens_more_hits_and_less_age_are_worth_more(better, worse):
    def value(tokens=150, hits=0, used=5):
        text = HashedTokens(range(tokens))
        entry = StoredPrefix.of(text, Checkpoint(tokens, 0, ()), FORK, used)
        entry.hits = hits
        return worth(entry, 10, PrefixBytes(recurrent=1))

    assert value(**better) > value(**worse)


def test_what_another_prefix_saves_is_not_counted_again():
    """Of a long prefix just above a longer one, only the difference would be lost."""
    tree = PrefixTree()
    short, long = (
        StoredPrefix.of(HashedTokens(range(n)), Checkpoint(n, 0, ()), FORK, 0) for n in (640, 704)
    )
    tree.add(short, None)
    tree.add(long, short)
    assert (short.marginal, long.marginal) == (640, 64)
    assert SIZE.own(long) == 1000 + 100 + 10
    assert SIZE.own(short) == 1000 + 100 + 10, "its full chunks are the longer one's too"
    tree.remove(long)
    assert SIZE.own(short) == 1000 + 10 * 100 + 3 * 10


# -- side requests --------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [3, 4, 5, 8])
def test_side_requests_never_push_out_the_chat_that_they_came_from(capacity):
    """Title, tags and follow-ups after each turn: the same system prompt, another text."""
    here = Shelf(capacity)
    for turn, (header, answer) in enumerate(chat(1, 8)):
        start = here.turn(header, answer, (100, len(header)))
        assert (start.length if start else 0) == (len(header) - 30 if turn else 0)
        for side in range(3):
            text = (*SYSTEM, 77, 10 * turn + side, 78)
            assert here.turn(text, (79,) * 5, (100, len(text))).length == 100


def test_side_requests_do_not_keep_new_conversations_out():
    """Others with the same system prompt are kept again once a few requests have passed."""
    here = Shelf(capacity=8)
    for seed in range(1, 6):
        header, answer = next(chat(seed, 1))
        here.turn(header, answer, (100, 120))
    assert here.start((*header, 1)).length == 120


def test_a_request_does_not_push_out_what_it_started_from():
    here = Shelf(capacity=2)
    start = here.put(SYSTEM)
    here.put((5, 6, 7))
    here.start((*SYSTEM, 1))
    assert here.put((*SYSTEM, 1, 2), start=start)
    assert here.lengths() == [100, 102]
    newest = here.put((*SYSTEM, 3, 4), start=start)
    assert (newest, here.lengths()) == (None, [100, 102]), "another one extends it, so no room"
    assert here.put((*SYSTEM, 1, 2, 3), END, start=start) is None


@pytest.mark.parametrize("capacity", [2, 3, 8])
def test_a_chat_goes_on_with_little_room(capacity):
    here = Shelf(capacity)
    starts = [here.turn(header, answer, (100, len(header))) for header, answer in chat(1, 6)]
    assert [each and each.length for each in starts[1:]] == [120, 150, 180, 210, 240]


def test_room_for_one_prefix_is_used_by_the_newest():
    here = Shelf(capacity=1)
    start = here.put(SYSTEM)
    here.put((*SYSTEM, 1), start=start)
    assert here.lengths() == [101]


# -- counters -------------------------------------------------------------------------------------


def test_what_was_reused_and_why_prefixes_went_is_counted():
    here = Shelf(capacity=2)
    here.put(SYSTEM)
    here.put(SYSTEM)
    here.start((*SYSTEM, 1))
    here.start((7, 7))
    here.put((1, 2))
    here.put((3, 4))
    here.cache.drop(here.put((5, 6), CHOICES), DropReason.CHOICES)
    here.cache.clear()
    assert here.cache.stats() == {
        **{"prefixes": 0, "prefixes_device": 0, "prefixes_host": 0, "prefixes_device_bytes": 0},
        **{"prefix_lookups": 2, "prefix_hits": 1, "prefix_tokens": 100},
        **{"prefix_drops_room": 2, "prefix_drops_superseded": 1},
        **{"prefix_drops_choices": 1, "prefix_drops_fault": 1},
    }
    assert len(here.dropped) == 5


# -- against a plain model ------------------------------------------------------------------------

TEXTS = st.builds(
    lambda length, place: tuple(n + 1000 * (n >= place) for n in range(length)),
    st.sampled_from([1, 5, 63, 64, 65, 100, 128, 150, 200, 256]),
    st.sampled_from([0, 3, 64, 90, 128, 300]),
)


class CacheMachine(RuleBasedStateMachine):
    """A prefix cache beside a dictionary from tokens to kind and hits, searched plainly."""

    @initialize(capacity=st.integers(0, 8), any_chunk=st.booleans())
    def open(self, capacity, any_chunk):
        self.here = Shelf(capacity, any_chunk=any_chunk)
        self.capacity, self.known = capacity, {}

    @rule(tokens=TEXTS, kind=st.sampled_from(PrefixKind), data=st.data())
    def insert(self, tokens, kind, data):
        cache = self.here.cache
        forks = data.draw(st.sets(st.sampled_from([5, 64, 100, 128])))
        start = data.draw(st.sampled_from([None, *cache]))
        kept = cache.needed_by(kind, start, HashedTokens(tokens), len(tokens))
        assert kept <= set(cache)
        entry = self.here.put(tokens, kind, forks, start)
        stored = {each.tokens.prefix(each.length) for each in cache}
        if tokens in self.known:
            assert stored == set(self.known)
            return
        assert stored <= {*self.known, tokens}
        assert kept <= set(cache)
        if entry is None:
            assert self.capacity == 0 or len(kept) == len(cache)
        else:
            self.known[tokens] = 0
        self.known = {each: hits for each, hits in self.known.items() if each in stored}

    @rule(tokens=TEXTS)
    def start(self, tokens):
        found = self.here.cache.find(HashedTokens(tokens))
        self.here.cache.started(found)
        if found is not None:
            self.known[found.entry.tokens.prefix(found.entry.length)] += 1

    @rule(data=st.data())
    def evict(self, data):
        cache = self.here.cache
        keep = data.draw(st.sets(st.sampled_from([*cache]))) if len(cache) else set()
        order = cache.victims(keep)
        assert set(order) | keep == set(cache)
        ranks = [rank_of(each, any_chunk=cache.any_chunk) for each in order]
        assert ranks == sorted(ranks)
        assert cache.evict_one(keep) == bool(order)
        for each in order[:1]:
            assert each not in cache
            del self.known[each.tokens.prefix(each.length)]

    @rule()
    def clear(self):
        self.here.cache.clear()
        self.known = {}

    @invariant()
    def agrees(self):
        cache = self.here.cache
        assert len(cache) <= self.capacity
        found = {each.tokens.prefix(each.length): each for each in cache}
        assert {tokens: each.hits for tokens, each in found.items()} == self.known
        for tokens, entry in found.items():
            before = [each for each in found if each != tokens and tokens[: len(each)] == each]
            above = max(before, key=len, default=None)
            assert entry.above is (None if above is None else found[above])
            assert set(entry.below) == {each for each in found.values() if each.above is entry}
            assert cache.at(HashedTokens(tokens), len(tokens)) is entry


def test_the_cache_agrees_with_a_plain_model_after_any_sequence_of_changes():
    run_state_machine_as_test(CacheMachine)


@given(st.lists(TEXTS, min_size=1, max_size=8, unique=True), st.randoms())
def test_a_tree_is_the_same_in_whatever_order_it_grew(texts, random):
    def shape(order):
        here = Shelf()
        for text in order:
            here.put(text)
        return {
            each.tokens.prefix(each.length): each.above and each.above.length for each in here.cache
        }

    shuffled = texts.copy()
    random.shuffle(shuffled)
    assert shape(texts) == shape(shuffled)
