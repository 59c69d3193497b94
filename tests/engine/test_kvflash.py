"""Sequences that are longer than their budget: what they see, and what becomes of the rest."""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from itertools import pairwise

import mtp_bench
import pytest
import torch

from kinfolk import hookimpl
from kinfolk.engine.loading import load_model
from kinfolk.errors import CapacityError, ContextLengthExceeded, RequestError, SettingsError
from kinfolk.hooks import HookProvider
from kinfolk.sched.events import Emitted
from kinfolk.sched.request import FinishReason, Request, Sampling
from kinfolk.score_api import KEEP, Scores
from kinfolk.settings import load_settings
from kinfolk.state.copies import Copies
from kinfolk.state.slabs import Slabs
from kinfolk.types import CHUNK_POSITIONS

FAMILIES = ["qwen35", "qwen35moe", "gemma4", "gemma4moe", "laguna"]
BURST = 2
BUDGET = (1 + 4 + BURST + 3) * CHUNK_POSITIONS
CONTEXT = 3072


@pytest.fixture(scope="session")
def open_family(registry, cases):
    """``open_family(name, scorer=None, **settings)``: a small model of a family."""

    def open_model(name="qwen35", scorer=None, **settings):
        options = {
            "device": "cpu",
            "dtype": "f32",
            "context": CONTEXT,
            "slots": 4,
            "kvflash": BUDGET,
            "kvflash_burst": BURST,
            "kvflash_policy": "lru",
            "draft": "off",
            **settings,
        }
        loaded = load_model(cases / f"{name}.gguf", load_settings(**options), registry)
        return loaded if scorer is None else with_scorer(loaded, scorer)

    return open_model


def with_scorer(loaded, scorer):
    hooks = loaded.hooks.with_policies([HookProvider("policy of the test", scorer)])
    rules = replace(loaded.residency, scorers=hooks.asked("score_chunks"))
    return replace(loaded, hooks=hooks, residency=rules)


class Wants:
    """The oracle: chunks that it is told to keep score 1, the others 0."""

    def __init__(self, *chunks, answer=None):
        self.chunks, self.answer, self.queries = set(chunks), answer, []

    @hookimpl
    def score_chunks(self, query):
        self.queries.append(replace(query, tokens=tuple(query.tokens)))
        if self.answer is not None:
            return self.answer(query)
        return Scores(torch.tensor([float(n in self.chunks) for n in range(query.chunks)]))


@pytest.fixture
def start(engine):
    """``start(loaded, **limits)``: an engine for long contexts."""

    def run(loaded, drafter=None, **limits):
        values = {"slots": 4, "context": CONTEXT, "step_tokens": 1024, "slice": 512, **limits}
        return engine(drafter, loaded, **values)

    return run


def tokens_of(loaded, count, seed=0):
    source = random.Random(seed)
    return tuple(source.randrange(loaded.info.vocabulary) for _ in range(count))


def residents(running):
    """The chunks of the only sequence with a slot that are on the device."""
    (sequence,) = [each for each in running._scheduler.alive.values() if each.lease]
    return [n for n, _ in running._kv_cache.tables.table(sequence.lease, 0)]


# -- equality -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "graphs", "steps"),
    [
        *((family, "off", 40) for family in FAMILIES),
        ("qwen35", "on", 20),
        ("gemma4", "on", 20),
        *(
            pytest.param(family, graphs, 1200, marks=pytest.mark.long)
            for family in FAMILIES
            for graphs in ("on", "off")
        ),
    ],
)
def test_with_all_brought_back_before_each_step_no_logit_differs(
    open_family, driver_of, family, graphs, steps
):
    """Chunks leave and come back to other blocks before every step: logits are equal bit by bit."""
    loaded = open_family(family, kvflash="off", context=2048)
    tokens = list(tokens_of(loaded, 300 + steps))
    source = random.Random(1)
    plain, paged = (driver_of(loaded, replays=graphs == "on") for _ in range(2))
    still, moved = plain.open(1600), paged.open(1600, paged=True)
    tables, pool = paged.kv_cache.tables, loaded.plan.windows.index(None)
    for drive, lease in ((plain, still), (paged, moved)):
        drive.feed({lease: tokens[:300]}, rows=150)
    for token in tokens[300:]:
        full = range(tables.length(moved) // CHUNK_POSITIONS)
        gone = source.sample(full, source.randint(1, len(full)))
        paged.exchange(moved, gone, pool=pool, seed=source.randrange(99))
        ours, theirs = (
            drive.feed({lease: [token]})[lease] for drive, lease in ((paged, moved), (plain, still))
        )
        assert torch.equal(ours, theirs)


@pytest.fixture
def driver_of():
    from kinfolk.testing.driver import Driver

    return Driver


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_differs_while_nothing_has_left(open_family, start, collect, family):
    """A paged sequence whose chunks all fit has the tokens and log-probabilities of a full one."""
    outcomes = []
    for kvflash in (BUDGET, "off"):
        loaded = open_family(family, kvflash=kvflash)
        prompt = tokens_of(loaded, (BUDGET // CHUNK_POSITIONS - BURST - 2) * CHUNK_POSITIONS - 60)
        request = Request("a", prompt, 900, Sampling(logprobs=2), grant=50)
        running = start(loaded, slice=128)
        events = hold(running, request)
        outcomes.append([event for event in events if hasattr(event, "tokens")])
        running.cancel("a")
        counted = running.stats()
        assert counted["kvflash_evictions"] == 0
        assert counted["saves"] > 0 or kvflash == "off"
    assert outcomes[0] == outcomes[1]


# -- residency ------------------------------------------------------------------------------------


def test_a_prompt_longer_than_the_budget_keeps_the_first_and_the_last_chunks(
    open_family, start, collect
):
    loaded = open_family()
    running = start(loaded)
    request = Request("a", tokens_of(loaded, 1500), 100, grant=70)
    hold(running, request)
    kept = residents(running)
    assert len(kept) <= BUDGET // CHUNK_POSITIONS - BURST
    last = (1500 + 69) // CHUNK_POSITIONS
    assert kept[0] == 0
    assert kept[1:] == list(range(last - len(kept) + 2, last + 1))
    running.cancel("a")


def test_chunks_are_scored_before_the_last_tokens_of_a_prompt_and_every_tau_tokens_after(
    open_family, start
):
    """Not only after some tokens of an answer, and not only where a count is a multiple."""
    scorer = Wants(3, 7)
    loaded = open_family(scorer=scorer, kvflash_tau=48)
    running = start(loaded)
    prompt = tokens_of(loaded, 1500)
    hold(running, Request("a", prompt, 300, grant=200))
    reasons = [query.reason for query in scorer.queries]
    assert reasons[0] == "prompt"
    assert set(reasons[1:]) == {"interval"}
    first = scorer.queries[0]
    assert tuple(first.tokens[:1500]) == prompt
    assert first.length < 1500
    assert first.chunks == len(first.resident) == first.length // CHUNK_POSITIONS
    lengths = [query.length for query in scorer.queries[1:]]
    steps = [after - before for before, after in pairwise(lengths)]
    assert steps == [48] * len(steps)
    assert {3, 7} <= set(residents(running))
    running.cancel("a")


def test_what_a_scorer_wants_is_there_for_the_first_token(open_family, start, collect):
    """The prompt's last tokens are read with the chunks that were chosen for them."""
    plain = open_family(kvflash="off")
    prompt = tokens_of(plain, 1500)
    running = start(plain)
    full = collect(running.submit(Request("full", prompt, 1))).tokens
    wanted, scorer = range(1, 17), Wants()
    seen = []

    def answer(query):
        seen.append(query)
        return Scores(torch.tensor([float(n in wanted) for n in range(query.chunks)]))

    scorer.answer = answer
    loaded = open_family(scorer=scorer, kvflash=25 * CHUNK_POSITIONS, kvflash_burst=16)
    paged = start(loaded)
    hold(paged, Request("a", prompt, 40, grant=1))
    assert set(wanted) <= set(residents(paged)) | {16}
    assert len(full) == 1
    paged.cancel("a")


def test_the_smallest_budget_has_room_for_a_choice_at_the_end_of_a_prompt(open_family, start):
    """Its last slice has pushed out all that is not protected: what is protected then is what the
    slice has left, not what it began with."""
    loaded = open_family(scorer=Wants(3), kvflash=9 * CHUNK_POSITIONS)
    running = start(loaded)
    hold(running, Request("a", tokens_of(loaded, 1500), 40, grant=1))
    assert 3 in residents(running)
    running.cancel("a")


@pytest.mark.parametrize("overlap", [True, False])
def test_a_round_depends_on_the_sequence_alone(open_family, start, collect, overlap):
    """Tokens are the same alone, in company and with or without a step launched ahead."""
    chosen = random.Random(3)
    wanted = chosen.sample(range(1, 30), 6)

    def outcome(company, ahead):
        loaded = open_family(scorer=Wants(*wanted), kvflash_tau=20, graphs="on")
        running = start(loaded, overlap=ahead)
        tickets = [
            running.submit(Request(f"other {n}", tokens_of(loaded, 900 + n, n), 40))
            for n in range(company)
        ]
        found = collect(running.submit(Request("a", tokens_of(loaded, 1300, 9), 120)))
        for ticket in tickets:
            ticket.cancel()
        stats = running.stats()
        assert stats["kvflash_recalls"] > 0
        assert stats["replays"] > 50
        return found.tokens

    assert outcome(2, overlap) == outcome(0, not overlap)


def test_a_scorer_that_fails_costs_a_round_and_no_request(open_family, start, collect):
    answers = iter(range(99))

    def answer(query):
        match next(answers) % 5:
            case 0:
                raise RuntimeError("no idea")
            case 1:
                return Scores(torch.full((query.chunks,), float("nan")))
            case 2:
                return Scores(torch.zeros(query.chunks + 1))
            case 3:
                return KEEP
            case _:
                return None

    loaded = open_family(scorer=Wants(answer=answer), kvflash_tau=8)
    running = start(loaded)
    end = collect(running.submit(Request("a", tokens_of(loaded, 1100), 80))).end
    assert end.reason is FinishReason.LENGTH
    assert not end.usage.exact
    stats = running.stats()
    assert stats["kvflash_scorer_failures"] >= 6
    assert stats["kvflash_selections"] >= 9


@pytest.mark.parametrize(
    "failure", ["an exception", pytest.param("no number", marks=pytest.mark.long)]
)
def test_where_every_round_fails_chunks_stay_as_without_a_scorer_and_one_line_is_logged(
    open_family, start, caplog, failure
):
    def answer(query):
        if failure == "an exception":
            raise RuntimeError("no idea")
        return Scores(torch.full((query.chunks,), float("nan")))

    kept, counted = [], []
    for scorer in (None, Wants(answer=answer)):
        loaded = open_family(scorer=scorer, kvflash_tau=16)
        running = start(loaded)
        hold(running, Request("a", tokens_of(loaded, 900), 100, grant=70))
        kept.append(residents(running))
        running.cancel("a")
        counted.append(running.stats())
    assert kept[0] == kept[1]
    assert counted[1]["kvflash_scorer_failures"] == counted[1]["kvflash_selections"] >= 4
    assert counted[1]["kvflash_recalls"] == 0
    assert caplog.text.count("chunks are chosen by recency this time") == 1


def hold(running, request):
    """Run a request until it has emitted what it was granted; returns its events."""
    held, events = threading.Event(), []
    running.submit(request, events.append, lambda _: held.set())
    assert held.wait(60)
    return events


# -- company --------------------------------------------------------------------------------------


def test_four_sequences_of_four_times_the_pool_with_cancels_equal_their_solo_runs(
    open_family, start, collect
):
    """In each, contexts together are four times what the pool has room for."""
    loaded = open_family(scorer=Wants(2, 5, 9))
    requests = [Request(str(n), tokens_of(loaded, 1000 + 190 * n, n), 60 + 7 * n) for n in range(6)]
    solo = {}
    for request in (requests[0], *requests[2:]):
        solo[request.id] = collect(start(loaded, slots=1).submit(request)).tokens
    running = start(loaded)
    tickets = {each.id: running.submit(each) for each in requests}
    tickets["1"].cancel()
    found = {name: collect(ticket) for name, ticket in tickets.items()}
    for name, outcome in found.items():
        if name != "1":
            assert outcome.tokens == solo[name], name
    running.check_integrity()


def test_a_chat_longer_than_the_budget_goes_on_from_where_it_was(open_family, start, collect):
    """What was computed while chunks were away is kept for the next turn, and called not exact."""
    loaded = open_family(checkpoints=4)
    running = start(loaded)
    known = list(tokens_of(loaded, 800))
    for turn in range(5):
        request = Request(
            f"turn {turn}", tuple(known), 40, keep=True, checkpoints=(len(known) - 20,)
        )
        outcome = collect(running.submit(request))
        assert outcome.end.reason is FinishReason.LENGTH, outcome.end.error
        if turn:
            assert outcome.end.usage.reused >= len(known) - 64 - 40
            assert outcome.end.usage.reused_from == "host"
        assert not outcome.end.usage.exact or turn == 0
        known += [*outcome.tokens, *tokens_of(loaded, 60, turn)]
    # A prompt that fits the budget starts from nothing that missed something.
    short = Request("short", tuple(known[:500]), 4)
    assert collect(running.submit(short)).end.usage.exact


def test_chunks_that_left_before_keep_no_later_request_from_being_kept(open_family, start, collect):
    """What is kept depends on the request, not on what was evicted since the start."""
    running = start(open_family(checkpoints=4))
    collect(running.submit(Request("long", tokens_of(running.loaded, 1000), 20)))
    assert running.stats()["kvflash_evictions"] > 0
    prompt = tokens_of(running.loaded, 200, 3)
    first = collect(running.submit(Request("short", prompt, 20, keep=True)))
    again = (*prompt, *first.tokens, *tokens_of(running.loaded, 30, 4))
    usage = collect(running.submit(Request("again", again, 4))).end.usage
    assert usage.exact
    assert (usage.reused, usage.reused_from) == (219, "device")


# -- sizes ----------------------------------------------------------------------------------------


def test_a_budget_that_is_too_small_is_refused_with_the_arithmetic(open_family):
    with pytest.raises(SettingsError, match="make 9 chunks of 64 tokens = 576"):
        open_family(kvflash=512)


def test_too_little_host_memory_is_refused_with_the_number(open_family):
    with pytest.raises(CapacityError, match=r"48 chunks of \d+ bytes = 0\.\d+ GiB, --kvflash-host"):
        open_family(kvflash_host=0.001)


def test_a_budget_of_the_whole_context_is_off_and_says_so(open_family, caplog):
    loaded = open_family(kvflash=CONTEXT)
    assert loaded.residency is None
    assert "--kvflash is off" in caplog.text


def test_a_request_longer_than_what_the_host_has_room_for_is_refused(open_family, start):
    loaded = open_family()
    with pytest.raises(ContextLengthExceeded, match="the context holds"):
        start(loaded).submit(Request("a", tokens_of(loaded, CONTEXT), 10))


@pytest.mark.parametrize("family", ["qwen35", "qwen35moe"])
def test_the_pool_of_a_budget_is_smaller_than_that_of_all_contexts(open_family, family):
    paged, full = open_family(family), open_family(family, kvflash="off")
    assert paged.limits.blocks[0] == 4 * BUDGET // CHUNK_POSITIONS
    assert full.limits.blocks[0] == 4 * CONTEXT // CHUNK_POSITIONS
    assert open_family(kvflash="auto").residency is None, "16384 tokens are more than the context"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda query: Scores(torch.zeros(query.chunks + 1)), "3 scores for 2 chunks"),
        (lambda query: [1.0] * query.chunks, "which is no"),
    ],
)
def test_a_scorer_with_a_wrong_answer_is_refused_when_the_model_opens(open_family, answer, reason):
    from kinfolk.engine.chunk_scoring import probe_scorers
    from kinfolk.errors import HookValueError

    loaded = open_family(scorer=Wants(answer=answer))
    with pytest.raises(HookValueError, match=f"score_chunks.*{reason}"):
        probe_scorers(loaded.hooks)


# -- drafts, prefixes -----------------------------------------------------------------------------


class Foresees:
    """Drafts what will come, with every ninth token wrong."""

    def __init__(self, text):
        self.text = text

    def propose(self, known, limit):
        start = len(known)
        tokens = list(self.text[start : start + limit])
        return [t + (n % 9 == 0) for n, t in enumerate(tokens, start)]

    def release(self, known):
        pass


def test_drafts_on_a_paged_sequence_change_no_token_while_nothing_has_left(
    open_family, start, collect
):
    """Afterwards, all rows of a step see the same chunks, so that a chain which reaches into a new
    chunk sees one more than single rows would; it is accepted like others."""
    loaded = open_family(scorer=Wants(1))
    request = Request("a", tokens_of(loaded, 340, 4), 310)
    plain = collect(start(loaded).submit(request)).tokens
    running = start(loaded, Foresees((*request.prompt, *plain)), max_draft=9, widths="fixed")
    tokens = collect(running.submit(request)).tokens
    until = loaded.residency.decoding * CHUNK_POSITIONS - 340
    assert until > 100
    assert tokens[:until] == plain[:until]
    assert len(tokens) == len(plain)
    assert running.stats()["kvflash_evictions"] > 0


@pytest.mark.parametrize(
    "family",
    ["qwen35", *(pytest.param(each, marks=pytest.mark.long) for each in FAMILIES[1:])],
)
def test_selections_are_due_by_committed_tokens_with_drafts_too(
    open_family, start, collect, family
):
    scorer = Wants(3)
    loaded = open_family(family, scorer=scorer, kvflash_tau=20)
    request = Request("a", tokens_of(loaded, 1000, 4), 200)
    plain = collect(start(loaded).submit(request)).tokens
    running = start(loaded, Foresees((*request.prompt, *plain)), max_draft=9, widths="fixed")
    scorer.queries.clear()
    collect(running.submit(request))
    lengths = [query.length for query in scorer.queries[1:]]
    steps = [after - before for before, after in pairwise(lengths)]
    assert len(steps) > 5
    assert max(steps) > 20, "drafts are accepted"
    assert all(20 <= step < 20 + 10 for step in steps), steps
    for query in scorer.queries:
        assert len(query.tokens) >= query.length


def test_after_a_start_from_a_prefix_the_tokens_of_all_chunks_are_known(
    open_family, start, collect
):
    scorer = Wants(3)
    loaded = open_family(scorer=scorer, checkpoints=2)
    running = start(loaded)
    prompt, more = tokens_of(loaded, 1100), tokens_of(loaded, 900, 5)
    collect(running.submit(Request("a", prompt, 30, keep=True, checkpoints=(1088,))))
    scorer.queries.clear()
    again = (*prompt[:1088], *more)
    end = collect(running.submit(Request("b", again, 1))).end
    assert end.usage.reused == 1088
    assert scorer.queries[0].reason == "prefix"
    assert scorer.queries[-1].reason == "prompt"
    assert all(tuple(query.tokens) == again for query in scorer.queries[:1])


@pytest.mark.parametrize("family", ["qwen35", "laguna"])
def test_a_start_from_a_prefix_sees_what_was_seen_there(open_family, start, collect, family):
    """Not only the last chunks: what was chosen for the turn before is there before anyone is
    asked again."""
    scorer = Wants(3, 5)
    loaded = open_family(family, scorer=scorer, checkpoints=4, kvflash=16 * CHUNK_POSITIONS)
    running = start(loaded)
    prompt, more = tokens_of(loaded, 1450), tokens_of(loaded, 40, 5)
    first = collect(running.submit(Request("a", prompt, 30, keep=True))).tokens
    scorer.answer = lambda query: KEEP
    events = hold(running, Request("b", (*prompt, *first, *more), 9, grant=1))
    found = residents(running)
    running.cancel("b")
    assert {3, 5} <= set(found)
    assert len(found) <= 16 - BURST
    assert len(events) == 1
    assert running.stats()["prefix_hits"] == 1


def test_a_paged_request_that_was_preempted_goes_on_as_if_it_had_not_been(
    open_family, start, collect
):
    loaded = open_family(scorer=Wants(4, 6), kvflash_tau=16, preempt=True, slots=1)
    request = Request("a", tokens_of(loaded, 1200), 150, priority=1)
    alone = collect(start(loaded, slots=1, preempt=True).submit(request)).tokens
    running = start(loaded, slots=1, preempt=True)
    first, seen = threading.Event(), []
    ended = threading.Event()

    def listen(event):
        seen.extend(getattr(event, "tokens", ()))
        first.set()
        if hasattr(event, "reason"):
            ended.set()

    running.submit(request, listen)
    assert first.wait(60)
    collect(running.submit(Request("b", tokens_of(loaded, 1000, 2), 5, priority=0)))
    assert ended.wait(60)
    assert running.stats()["preemptions"] == 1
    assert seen == alone


def assert_nothing_saved(running):
    """Host memory holds no row, and none is promised to anyone. Rows of those that have ended are
    dropped by the next plan."""
    *_, end = running.submit(Request("short", (1, 2, 3), 1))
    assert end.error is None
    stats = running.stats()
    assert (stats["saved_rows"], stats["host_rows"], stats["host_bytes"]) == (0, 0, 0)
    assert stats["running"] == stats["waiting"] == 0
    running.check_integrity()


@pytest.mark.parametrize("what", ["save", "load"])
@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.long), 3])
def test_a_copy_that_fails_costs_the_request_that_has_a_slot_and_no_row(
    open_family, start, collect, monkeypatch, what, number
):
    """A request that waits meanwhile runs as if nothing had been."""
    loaded = open_family(scorer=Wants(2, 3), kvflash_tau=16, slots=1)
    waiting = Request("b", tokens_of(loaded, 700, 2), 12)
    expected = collect(start(loaded, slots=1).submit(waiting)).tokens
    copy, left = getattr(Copies, what), [number]

    def fail(*arguments):
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("the bus is gone")
        return copy(*arguments)

    monkeypatch.setattr(Copies, what, fail)
    running = start(loaded, slots=1)
    tickets = [running.submit(Request("a", tokens_of(loaded, 1000), 90)), running.submit(waiting)]
    lost, other = (collect(ticket) for ticket in tickets)
    assert left[0] <= 0, "there were so many copies"
    assert "the bus is gone" in (lost.end.error or other.end.error)
    assert (lost.end.error is None) != (other.end.error is None), "one request is lost"
    if other.end.error is None:
        assert other.tokens == expected
    assert_nothing_saved(running)
    assert collect(running.submit(replace(waiting, id="again"))).tokens == expected
    assert_nothing_saved(running)


def test_a_host_without_memory_costs_the_request_that_needed_it(
    open_family, start, collect, monkeypatch
):
    """It was promised at the start, and the system has given it to others since."""
    loaded = open_family(slots=1)
    running = start(loaded, slots=1)
    take, full = Slabs.take, [True]

    def refuse(slabs):
        if full[0]:
            raise CapacityError("the host has no bytes more")
        return take(slabs)

    monkeypatch.setattr(Slabs, "take", refuse)
    short = Request("short", tokens_of(loaded, 300), 5)
    assert collect(running.submit(short)).end.error is None, "it fits its budget"
    long = Request("long", tokens_of(loaded, 1000), 5)
    assert "the host has no bytes more" in collect(running.submit(long)).end.error
    assert_nothing_saved(running)
    full[0] = False
    assert collect(running.submit(replace(long, id="again"))).end.error is None
    assert_nothing_saved(running)


def test_a_request_that_is_cancelled_at_any_point_leaves_no_row_and_harms_no_other(
    open_family, start, collect
):
    """In each phase of a selection, and while its prompt is read."""
    loaded = open_family(scorer=Wants(2, 3), kvflash_tau=4, slots=2)
    running = start(loaded, slots=2, slice=128)
    other = Request("other", tokens_of(loaded, 700, 2), 20)
    alone = collect(running.submit(other)).tokens
    stopped = []
    for point in range(6):
        beside = running.submit(replace(other, id=f"beside {point}"))
        ticket = running.submit(Request(f"a {point}", tokens_of(loaded, 1000, point), 60))
        seen = 0
        for event in ticket:
            if point == 0 or seen == point:
                ticket.cancel()
            seen += isinstance(event, Emitted)
        stopped.append(event.reason)
        assert collect(beside).tokens == alone
        assert_nothing_saved(running)
    assert stopped.count(FinishReason.CANCELLED) >= 5


# -- captured steps and company of other kinds ----------------------------------------------------


def test_captures_allocations_and_waits_are_flat_over_a_hundred_evictions(
    open_family, start, collect
):
    loaded = open_family(scorer=Wants(1, 2, 3), kvflash_tau=16, graphs="on", slots=2)
    running = start(loaded, slots=2, slice=64)
    collect(running.submit(Request("warm", tokens_of(loaded, 1500), 40)))
    before = running.stats()
    for number in range(7):
        collect(running.submit(Request(str(number), tokens_of(loaded, 1500, number), 40)))
    after = running.stats()
    gained = {name: after[name] - before[name] for name in after}
    assert gained["kvflash_evictions"] >= 100
    assert gained["captures"] == gained["allocations"] == gained["eager_steps"] == 0
    assert gained["waits"] == gained["steps"] == gained["replays"]


def test_a_whole_selection_fits_the_upload_of_a_captured_step(open_family):
    """Chunks leave and come back anywhere in a table of the budget's width."""
    loaded = open_family(kvflash=60 * CHUNK_POSITIONS, kvflash_burst=32, context=4096)
    kv_cache, state = loaded.new_state()
    lease, tables = kv_cache.open(4096, resident=60), kv_cache.tables
    for chunk in range(60):
        if chunk > 27:
            tables.evict(lease, chunk - 27)
        tables.extend(lease, 64 * (chunk + 1))
        tables.advance(lease, 64 * (chunk + 1))
    state.apply(kv_cache.take_operations())
    state.block_tables.take_changes()
    for chunk in range(1, 33):
        if chunk < 23:
            tables.evict(lease, 32 + chunk)
        tables.recall(lease, chunk)
    state.apply(kv_cache.take_operations())
    changes = len(state.block_tables.take_changes().places)
    assert 40 < changes <= state.block_tables.usual_changes
    assert state.block_tables.widths[0] == 60, "as wide as the budget, not as the context"


def test_copies_of_a_paged_request_choose_what_it_chooses(open_family, start, collect):
    loaded = open_family(scorer=Wants(2, 4))
    running = start(loaded)
    request = Request("a", tokens_of(loaded, 1200), 60, grant=30)
    held = hold(running, request)
    ((together, alone),) = running.probe(["a"])
    running.grant("a", 2)
    while len(tokens := [token for event in held for token in event.tokens]) < 32:
        threading.Event().wait(0.01)
    assert together == alone == tokens[30]
    running.cancel("a")


def test_batch_invariant_requests_are_paged_alike_in_any_company(open_family, start, collect):
    options = {"batch_invariant": True, "kvflash_tau": 20}
    loaded = open_family(scorer=Wants(3, 6), **options)
    request = Request("a", tokens_of(loaded, 1100), 60, Sampling(logprobs=1))
    alone = collect(start(loaded).submit(request))
    running = start(loaded)
    others = [running.submit(Request(f"b{n}", tokens_of(loaded, 800, n), 60)) for n in range(1, 3)]
    found = collect(running.submit(request))
    for ticket in others:
        ticket.cancel()
    assert found.tokens == alone.tokens
    assert found.logprobs == alone.logprobs


@pytest.mark.parametrize("tree", [False, pytest.param(True, marks=pytest.mark.long)])
def test_drafts_of_the_device_on_a_paged_sequence(registry, start, collect, tmp_path, tree):
    """Chains and trees of a drafter with weights, whose own layers are paged along."""
    path = tmp_path / "mtp.gguf"
    mtp_bench.write_model(path, "qwen35")
    options = {"context": 1024, "slots": 2, "kvflash": BUDGET, "kvflash_burst": BURST}
    shape = {"draft_mode": "tree", "draft_budget": 9} if tree else {"draft_tokens": 5}
    found = []
    for draft in ({"draft": "off"}, {"draft": "mtp", **shape}):
        loaded = mtp_bench.open_model(path, registry, **options, **draft)
        running = start(loaded, context=1024, slots=2, widths="fixed")
        request = Request("a", tokens_of(loaded, 400, 4), 250)
        found.append(collect(running.submit(request)).tokens)
        stats = running.stats()
        assert stats["kvflash_evictions"] > 0
        assert stats["draft_failures"] == 0
    plain, drafted = found
    until = loaded.residency.decoding * CHUNK_POSITIONS - 400
    assert drafted[:until] == plain[:until]
    assert len(drafted) == len(plain)


def test_a_request_may_ask_to_be_all_on_the_device(open_family, start, collect):
    loaded = open_family()
    running = start(loaded)
    fits = Request("a", tokens_of(loaded, BUDGET - 10), 10, paged=False)
    assert collect(running.submit(fits)).end.usage.exact
    longer = replace(fits, max_new=11)
    reason = f"{BUDGET - 10} prompt tokens .* = {BUDGET + 1}, a sequence has room for 10 chunks"
    with pytest.raises(RequestError, match=reason):
        running.submit(longer)
