"""Many requests at once: each gets the output that it gets alone."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest

from kinfolk.engine.engine import Engine
from kinfolk.engine.inbox import Inbox
from kinfolk.errors import EngineError, StateError
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import FinishReason, Request, Sampling
from kinfolk.sched.scheduler import Scheduler

PROMPTS = (5, 63, 64, 65, 1, 100, 31, 47)
LENGTHS = (90, 12, 25, 7, 40, 3, 18, 33)

SAMPLINGS = [
    Sampling(temperature=1),
    Sampling(temperature=1.5, top_k=30),
    Sampling(temperature=1, top_p=0.9),
    Sampling(temperature=0.8, min_p=0.01),
    Sampling(temperature=1, repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3),
    Sampling(repetition_penalty=1.3),
    Sampling(temperature=1, logit_bias=((5, 3.0), (6, -2.0))),
    Sampling(temperature=0.9, top_k=200, top_p=0.97, min_p=0.001, presence_penalty=0.2, seed=99),
]


GREEDY = [Sampling()] * 8


def requests(text, samplings=GREEDY):
    return [
        Request(f"r{i}", tuple(text[i : i + size]), count, sampling)
        for i, (size, count, sampling) in enumerate(zip(PROMPTS, LENGTHS, samplings, strict=True))
    ]


def test_staggered_requests_get_their_solo_output_in_few_steps(engine, text, solo, gate):
    """A request arrives whenever the longest has emitted two more tokens; one is cancelled."""
    running = engine()
    longest, *others = requests(text)
    clock = gate(running, 2)
    running.submit(longest, clock)
    listeners = []
    for request in others:
        clock.wait()
        if request.id == "r4":
            listener = gate(running, 5)
            ticket = running.submit(replace(request, max_new=300), listener)
            listener.wait()
            clock.arm(2)
            ticket.cancel()
        else:
            listener = gate(running)
            clock.arm(2 if request is not others[-1] else 0)
            running.submit(request, listener)
        listeners.append(listener)
    for request, listener in zip(others, listeners, strict=True):
        outcome = listener.result()
        if request.id == "r4":
            assert outcome.end.reason is FinishReason.CANCELLED
            assert outcome.tokens == solo(request).tokens[:5]
        else:
            assert outcome.end.reason is FinishReason.LENGTH
            assert outcome.tokens == solo(request).tokens
    assert clock.result().tokens == solo(longest).tokens
    assert running.stats()["decode_steps"] <= 1.2 * max(LENGTHS)


def test_sampled_output_is_the_same_alone_and_in_company(engine, text, solo, collect):
    running = engine()
    mixed = requests(text, SAMPLINGS)
    tickets = [running.submit(request) for request in mixed]
    for request, ticket in zip(mixed, tickets, strict=True):
        assert collect(ticket).tokens == solo(request).tokens
    greedy = [solo(replace(request, sampling=Sampling())).tokens for request in mixed]
    assert all(
        solo(r).tokens != plain for r, plain in zip(mixed, greedy, strict=True) if r.max_new > 3
    )


def test_seeds_decide_and_nothing_else(engine, text, collect):
    running = engine()
    request = Request("a", tuple(text[:30]), 20, Sampling(temperature=1, seed=7))
    first = collect(running.submit(request)).tokens
    assert collect(running.submit(request)).tokens == first
    other = replace(request, sampling=replace(request.sampling, seed=8))
    assert collect(running.submit(other)).tokens != first


def test_penalties_count_what_was_emitted(engine, text, collect):
    """Thirty tokens are allowed; the penalty of an emitted one exceeds every gap between logits."""
    running = engine()
    few = tuple((token, 60.0) for token in range(100, 130))
    for penalty, repeats in ((0.0, True), (10.0, False)):
        sampling = Sampling(presence_penalty=penalty, logit_bias=few)
        said = collect(running.submit(Request("a", tuple(text[:20]), 28, sampling))).tokens
        assert set(said) <= set(range(100, 130))
        assert (len(set(said)) < len(said)) == repeats


@pytest.mark.parametrize("quantum", [1, 3, 16])
def test_64_requests_through_2_slots_all_finish(engine, text, solo, collect, quantum):
    running = engine(slots=2, quantum=quantum)
    many = [
        Request(f"r{i}", tuple(text[i % 8 : i % 8 + 11]), 3 + i % 5, Sampling()) for i in range(64)
    ]
    tickets = [running.submit(request) for request in many]
    for request, ticket in zip(many, tickets, strict=True):
        assert collect(ticket).tokens == solo(request).tokens
    stats = running.stats()
    assert (stats["running"], stats["waiting"]) == (0, 0)


def test_usage_counts_tokens_and_steps(engine, text, collect):
    running = engine()
    usage = collect(running.submit(Request("a", tuple(text[:70]), 9))).end.usage
    assert (usage.prompt, usage.emitted, usage.steps) == (70, 9, 8)
    assert (usage.reused, usage.drafted, usage.accepted) == (0, 0, 0)
    stats = running.stats()
    assert stats["prefill_rows"] == 70
    assert (stats["decode_steps"], stats["rows"]) == (8, 78)


# -- stop tokens ----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 7])
def test_a_stop_token_is_the_last_one_emitted(engine, text, solo, collect, place):
    request = Request("a", tuple(text[:40]), 20)
    expected = solo(request).tokens
    stop = frozenset({expected[place], 767})
    assert expected.index(expected[place]) == place
    outcome = collect(engine().submit(replace(request, stop=stop)))
    assert outcome.tokens == expected[: place + 1]
    assert outcome.end.reason is FinishReason.STOP


# -- reuse ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [32, 50, 64, 90])
def test_a_shared_prefix_is_reused_and_changes_nothing(engine, text, solo, collect, at):
    running = engine()
    first = Request("a", tuple(text[:100]), 4, checkpoints=(at,))
    assert collect(running.submit(first)).end.usage.reused == 0
    second = Request("b", (*text[:at], 7, 8, *text[100:130]), 20)
    outcome = collect(running.submit(second))
    assert outcome.end.usage.reused == at
    assert outcome.tokens == solo(second).tokens


def test_a_kept_end_is_where_the_next_turn_starts(engine, text, solo, collect):
    running = engine()
    first = Request("a", tuple(text[:45]), 30, keep=True)
    said = collect(running.submit(first)).tokens
    assert said == solo(first).tokens
    second = Request("b", (*first.prompt, *said, 4, 5, 6), 25, keep=True)
    outcome = collect(running.submit(second))
    # The last token was emitted and never fed.
    assert outcome.end.usage.reused == len(first.prompt) + len(said) - 1
    assert outcome.tokens == solo(second).tokens


def test_requests_that_share_a_prefix_run_beside_each_other(engine, text, solo, collect):
    running = engine()
    collect(running.submit(Request("a", tuple(text[:80]), 2, checkpoints=(70,))))
    branches = [Request(f"b{i}", (*text[:70], 9 + i, 3), 15) for i in range(5)]
    tickets = [running.submit(request) for request in branches]
    for request, ticket in zip(branches, tickets, strict=True):
        outcome = collect(ticket)
        assert outcome.end.usage.reused == 70
        assert outcome.tokens == solo(request).tokens


# -- tickets --------------------------------------------------------------------------------------


def test_a_waiting_request_can_be_cancelled(engine, text, gate, collect):
    running = engine(slots=1)
    front = gate(running, 2)
    running.submit(Request("front", tuple(text[:9]), 20), front)
    front.wait()
    front.arm(2)
    waiting = running.submit(Request("waiting", tuple(text[:9]), 5))
    front.wait()
    waiting.cancel()
    outcome = collect(waiting)
    assert (outcome.tokens, outcome.end.reason) == ([], FinishReason.CANCELLED)
    assert front.result().end.reason is FinishReason.LENGTH


def test_cancelling_twice_or_somebody_unknown_does_nothing(engine, text, gate, solo, collect):
    running = engine()
    other = Request("other", tuple(text[:20]), 10)
    listener = gate(running, 3)
    ticket = running.submit(Request("a", tuple(text[:9]), 300), listener)
    listener.wait()
    ticket.cancel()
    ticket.cancel()
    running.cancel("nobody")
    assert listener.result().end.reason is FinishReason.CANCELLED
    assert collect(running.submit(other)).tokens == solo(other).tokens
    ticket.cancel()


def test_a_reason_can_be_given_for_stopping(engine, text, gate):
    running = engine()
    listener = gate(running, 4)
    ticket = running.submit(Request("a", tuple(text[:9]), 300), listener)
    listener.wait()
    ticket.cancel(FinishReason.STOP)
    assert listener.result().end.reason is FinishReason.STOP


def test_closing_ends_what_runs_and_what_waits(engine, text, gate, collect):
    running = engine(slots=1)
    front = gate(running, 2)
    running.submit(Request("front", tuple(text[:9]), 300), front)
    front.wait()
    front.arm(2)
    waiting = running.submit(Request("waiting", tuple(text[:9]), 5))
    front.wait()
    running.close()
    assert front.result().end.reason is FinishReason.CANCELLED
    assert collect(waiting).end.reason is FinishReason.CANCELLED
    running.close()
    with pytest.raises(EngineError, match="has stopped"):
        running.submit(Request("late", (1,), 1))


def test_a_request_that_slips_in_while_the_engine_closes_is_ended_too(
    engine, text, gate, monkeypatch
):
    running = engine()
    listener = gate(running)
    take = Inbox.take

    def slip_in(inbox):
        """When it is found empty, a last request arrives, and then the engine is closed."""
        action = take(inbox)
        if action is None and not inbox.closing:
            running.submit(Request("late", tuple(text[:9]), 5), listener)
            inbox.close()
        return action

    monkeypatch.setattr(Inbox, "take", slip_in)
    running.submit(Request("first", tuple(text[:9]), 300))
    assert listener.result().end.reason is FinishReason.CANCELLED


def test_a_closed_engine_that_still_holds_a_request_fails_its_check(loaded, text, monkeypatch):
    limits = SchedulerLimits(slots=2, context=512, vocabulary=loaded.info.vocabulary)
    running = Engine(loaded, limits)
    monkeypatch.setattr(Scheduler, "cancel", lambda *arguments: ())
    events = iter(running.submit(Request("a", tuple(text[:9]), 400)))
    next(events)
    running.close()
    assert running.closed
    with pytest.raises(StateError, match="slots of a closed engine"):
        running.check_integrity()


@pytest.mark.parametrize("graphs", ["off", "on"])
def test_a_closed_engine_is_freed_at_once(load, text, collect, graphs):
    """State of sequences is memory of the device: it cannot wait for cycles to be found."""
    loaded = load(graphs=graphs)
    gc.collect()
    gc.disable()
    try:
        with Engine(loaded, SchedulerLimits(slots=2, context=400)) as engine:
            collect(engine.submit(Request("r", tuple(text[:40]), 3)))
            gone = weakref.ref(engine)
        del engine
        assert gone() is None
    finally:
        gc.enable()


def test_events_come_in_order_and_end_once(engine, text, gate, solo):
    running = engine()
    request = Request("a", tuple(text[:20]), 12)
    listener = gate(running)
    running.submit(request, listener)
    outcome = listener.result()
    assert outcome.tokens == solo(request).tokens
    assert outcome.end.request_id == "a"
