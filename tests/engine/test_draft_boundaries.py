"""Drafts that meet the ends of chunks, slices and windows, of prefixes and of requests: the tokens
are those without drafts, and the drafter's state is that of the sequence."""

from __future__ import annotations

from dataclasses import replace

import oracle_drafter
import pytest

from kinfolk.engine.loading import load_model
from kinfolk.sched.request import FinishReason, Request, Sampling
from kinfolk.settings import load_settings

SAMPLINGS = (Sampling(), Sampling(temperature=0.9, top_p=0.95, seed=11))
BOUNDARIES = (31, 32, 33, 63, 64, 65, 96, 127, 128, 129)
"""Lengths of prompts at and beside the ends of slices of 32 and of chunks of 64 positions."""

WINDOW = 24
"""That of the reference cases with windowed layers."""


def futures_of(requests, outcomes):
    return [[*one.prompt, *other.tokens] for one, other in zip(requests, outcomes, strict=True)]


def run(running, requests, collect):
    return [collect(ticket) for ticket in [running.submit(request) for request in requests]]


def assert_same(outcomes, expected):
    for one, other in zip(outcomes, expected, strict=True):
        assert one.tokens == other.tokens
        usage = one.end.usage
        assert usage.steps == usage.emitted - 1 - usage.accepted
        assert usage.accepted > 0


@pytest.mark.parametrize(
    ("width", "budget"), [(1, None), (6, None), (15, None), (0, 9), (0, 63)], ids=str
)
def test_prompts_that_end_at_a_boundary_get_the_same_tokens(
    engine, text, solo, collect, drafted, width, budget
):
    many = [
        Request(f"r{n}", tuple(text[:n]), 36, SAMPLINGS[place % 2])
        for place, n in enumerate(BOUNDARIES)
    ]
    expected = [solo(request) for request in many]
    columns = 2 if budget else 1
    loaded = drafted(
        futures_of(many, expected), width=width, budget=budget, wrong=5, columns=columns
    )
    running = engine(model=loaded, step_tokens=512)
    assert_same(run(running, many, collect), expected)
    assert running.stats()["draft_failures"] == 0


@pytest.mark.parametrize("family", ["gemma4", "laguna"])
@pytest.mark.parametrize("budget", [None, 24])
def test_prompts_that_end_at_a_window_get_the_same_tokens(
    engine, registry, drafters, cases, text, collect, tmp_path, family, budget
):
    """The drafter's own layer has the window too. The drafts of the shortest prompt cross it."""
    options = {"device": "cpu", "dtype": "f32", "context": 512, "slots": 5}
    path = cases / f"{family}.gguf"
    plain = load_model(path, load_settings(**options), registry)
    known = [token % plain.info.vocabulary for token in text]
    many = [
        Request(f"r{n}", tuple(known[:n]), 36, SAMPLINGS[n % 2])
        for n in (WINDOW - 8, WINDOW - 1, WINDOW, WINDOW + 1, 64 + WINDOW)
    ]
    expected = run(engine(model=plain, slots=5), many, collect)
    options["draft_model"] = oracle_drafter.write(
        tmp_path / "draft.gguf", futures_of(many, expected), wrong=6, columns=2, window=WINDOW,
        chain=budget is None,
    )  # fmt: skip
    options |= {"draft_mode": "chain" if budget is None else "tree", "draft_budget": budget or 1}
    loaded = load_model(path, load_settings(**options), drafters)
    assert_same(run(engine(model=loaded, slots=5, step_tokens=256), many, collect), expected)


@pytest.mark.parametrize("budget", [None, 20])
@pytest.mark.parametrize("at", [32, 63, 64, 65])
def test_a_prefix_restored_at_a_boundary_is_drafted_for_as_if_read(
    engine, text, solo, collect, drafted, at, budget
):
    """A request begins at a checkpoint inside a prompt, and one at the end of an answer whose last
    tokens were drafted: both take as many steps as from their start."""
    first = Request("first", tuple(text[: at + 4]), 10, checkpoints=(at,), keep=True)
    second = Request("second", (*text[:at], 5, 6, 7), 25)
    third = Request("third", (*first.prompt, *solo(first).tokens, 8, 9), 25)
    many = [first, second, third]
    loaded = drafted(
        futures_of(many, map(solo, many)), budget=budget, columns=2 if budget else 1, wrong=7
    )
    running, cold = engine(model=loaded), engine(model=loaded)
    collect(running.submit(first))
    for request in (second, third):
        found, expected = (collect(each.submit(request)) for each in (running, cold))
        assert found.tokens == solo(request).tokens
        assert found.end.usage.reused >= at > expected.end.usage.reused
        assert found.end.usage.steps == expected.end.usage.steps < 14


@pytest.mark.parametrize("budget", [None, 20])
@pytest.mark.parametrize("events", [1, 2, 3])
def test_a_request_cancelled_in_the_middle_of_a_draft_leaves_what_it_emitted(
    engine, text, solo, collect, drafted, gate, events, budget
):
    """Drafts for it wait in its slot. A neighbour goes on; the cancelled text, asked for again from
    where it stopped, goes on as if it had never been drafted."""
    first = Request("first", tuple(text[:60]), 40, keep=True)
    other = Request("other", tuple(text[7:70]), 40, SAMPLINGS[1])
    loaded = drafted(futures_of([first, other], map(solo, (first, other))), width=5, budget=budget)
    running = engine(model=loaded, slots=2)
    held = gate(running, hold_after=events)
    ticket, beside = running.submit(first, held), running.submit(other)
    held.wait()
    ticket.cancel()
    emitted = held.result().tokens
    assert held.result().end.reason is FinishReason.CANCELLED
    assert 0 < len(emitted) < 40
    assert emitted == solo(first).tokens[: len(emitted)]
    again = Request("again", (*first.prompt, *emitted), 20)
    assert collect(running.submit(again)).tokens == solo(again).tokens
    assert collect(beside).tokens == solo(other).tokens


@pytest.mark.parametrize("budget", [None, 20])
def test_requests_may_change_between_drafts_and_none(engine, text, solo, collect, drafted, budget):
    """A conversation whose turns are drafted for, not drafted for, and drafted for again."""
    prompt, running = tuple(text[:60]), None
    turns = []
    for turn in range(3):
        request = Request(f"turn {turn}", prompt, 14, keep=True, draft=turn != 1)
        turns.append(request)
        prompt = (*prompt, *solo(replace(request, draft=True)).tokens, 3 + turn)
    expected = [solo(replace(request, draft=True)) for request in turns]
    running = engine(model=drafted(futures_of(turns, expected), budget=budget))
    for request, right in zip(turns, expected, strict=True):
        outcome = collect(running.submit(request))
        assert outcome.tokens == right.tokens
        assert (outcome.end.usage.accepted > 0) == request.draft
        if request is not turns[0]:
            assert outcome.end.usage.reused > len(turns[0].prompt)
