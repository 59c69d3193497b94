"""Failures of one request, one step or one listener, and which requests they end."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kinfolk.door import behind
from kinfolk.errors import ContextLengthExceeded, RequestError
from kinfolk.sched.request import FinishReason, Request, Sampling

PATIENCE = 60.0
"""Seconds until a waiting test gives up."""

POISON = 733
"""A token whose embedding a test replaces by NaN; no text here has it."""


@pytest.fixture
def sick(loaded, altered):
    """The model with NaN for the token ``POISON``, as long as ``ill`` holds True."""
    ill = [True]

    def embed(tokens):
        x = loaded.model.embed(tokens)
        if ill[0]:
            x[tokens == POISON] = torch.nan
        return x

    return altered(loaded, embed=embed), ill


@pytest.fixture
def failing(loaded, altered):
    """``failing(count)``: the model, whose ``count``-th forward raises."""

    def make(count):
        left = [count]

        def forward(batch, view):
            left[0] -= 1
            if left[0] == 0:
                raise RuntimeError("a cable was pulled")
            return loaded.model.forward(batch, view)

        return altered(loaded, forward=forward)

    return make


# -- requests that cannot run ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request("a", (1,) * 500, 13), "500 prompt tokens"),
        (Request("a", (), 1), "empty"),
        (Request("a", (1,), 0), "max_new"),
        (Request("a", (768,), 1), "768"),
        (Request("a", (-1,), 1), "-1"),
        (Request("a", (1, 2), 1, checkpoints=(3,)), "checkpoints"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_request_that_could_never_run_is_refused_at_once(
    engine, text, solo, collect, request_, message
):
    running = engine()
    with pytest.raises(RequestError, match=message):
        running.submit(request_)
    good = Request("a", tuple(text[:9]), 3)
    assert collect(running.submit(good)).tokens == solo(good).tokens


def test_a_request_that_is_too_long_says_so(engine):
    with pytest.raises(ContextLengthExceeded, match="513, the context holds 512"):
        engine().submit(Request("a", (1,) * 500, 13))


def test_an_id_can_be_used_again_only_when_its_request_has_ended(engine, text, gate, collect):
    running = engine()
    listener = gate(running, 2)
    running.submit(Request("same", tuple(text[:9]), 10), listener)
    listener.wait()
    with pytest.raises(RequestError, match="'same' is still running"):
        running.submit(Request("same", tuple(text[:5]), 3))
    running.cancel("nobody")  # lets the engine run on
    first = listener.result().tokens
    assert len(first) == 10
    assert collect(running.submit(Request("same", tuple(text[:9]), 10))).tokens == first


def test_nonsense_is_the_callers_error_and_the_engine_lives(engine, text, solo, collect):
    running = engine()
    with pytest.raises(TypeError):
        running.submit(Request("a", (1, None), 3))
    good = Request("a", tuple(text[:9]), 3)
    assert collect(running.submit(good)).tokens == solo(good).tokens


# -- steps that fail ------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 2, 6])
def test_a_step_that_raises_ends_what_runs_and_serves_what_waits(
    engine, text, solo, collect, gate, failing, step
):
    running = engine(model=failing(step), slots=2)
    many = [Request(f"r{i}", tuple(text[i : i + 40]), 12, keep=True) for i in range(5)]
    first = gate(running)
    tickets = [running.submit(many[0], first)]
    tickets += [running.submit(request) for request in many[1:]]
    outcomes = [first.result(), *map(collect, tickets[1:])]
    failed = [outcome for outcome in outcomes if outcome.end.reason is FinishReason.ERROR]
    assert 1 <= len(failed) <= 2
    for request, outcome in zip(many, outcomes, strict=True):
        whole = solo(request).tokens
        if outcome.end.reason is FinishReason.ERROR:
            assert "RuntimeError: a cable was pulled" in outcome.end.error
            assert outcome.tokens == whole[: len(outcome.tokens)]
        else:
            assert outcome.tokens == whole
    again = replace(many[0], id="again")
    assert collect(running.submit(again)).tokens == solo(again).tokens


def test_a_model_that_leaves_the_program_fails_its_step_only(
    engine, loaded, altered, text, collect
):
    def forward(batch, view):
        raise SystemExit(3)

    running = engine(model=altered(loaded, forward=forward))
    failed = collect(running.submit(Request("a", tuple(text[:9]), 3)))
    assert failed.end.reason is FinishReason.ERROR
    assert "SystemExit: 3" in failed.end.error


def test_memory_that_a_plugins_op_misses_is_said_like_any_other(
    engine, loaded, altered, text, collect
):
    def allocate():
        raise torch.OutOfMemoryError("CUDA out of memory")

    op = behind("back end 'b' of plugin 'p'", "m:f", allocate)
    running = engine(model=altered(loaded, forward=lambda batch, view: op()))
    failed = collect(running.submit(Request("a", tuple(text[:9]), 3)))
    assert failed.end.error == "the device ran out of memory: lower --context or --slots"


def test_nothing_kept_before_a_fault_is_trusted_after_it(engine, text, solo, collect, failing):
    running = engine(model=failing(6))
    shared = tuple(text[:50])
    first = collect(running.submit(Request("a", (*shared, 1), 3, checkpoints=(50,))))
    assert first.end.reason is FinishReason.LENGTH
    assert collect(running.submit(Request("b", tuple(text[50:60]), 9))).end.error is not None
    after = Request("c", (*shared, 2), 6)
    outcome = collect(running.submit(after))
    assert outcome.end.usage.reused == 0
    assert outcome.tokens == solo(after).tokens


# -- numbers that are not finite ------------------------------------------------------------------


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=1, top_k=20), Sampling(temperature=1)], ids=str
)
def test_a_request_whose_logits_are_not_finite_fails_alone(
    engine, text, solo, collect, sick, sampling
):
    """It leaves nothing behind: requests that get its slot and its blocks are not affected."""
    model, _ = sick
    running = engine(model=model, slots=3)
    many = []
    for i in range(9):
        prompt = list(text[i : i + 22 + 9 * i])
        if i % 3 == 0:
            prompt[len(prompt) // 2] = POISON
        many.append(Request(f"r{i}", tuple(prompt), 8, replace(sampling, seed=i)))
    tickets = [running.submit(request) for request in many]
    for i, (request, ticket) in enumerate(zip(many, tickets, strict=True)):
        outcome = collect(ticket)
        if i % 3 == 0:
            assert outcome.end.reason is FinishReason.ERROR
            assert "not finite" in outcome.end.error
            assert outcome.tokens == []
        else:
            assert outcome.tokens == solo(request).tokens


def test_a_draft_whose_logits_are_not_finite_fails_alone(
    engine, text, solo, collect, prophet, sick
):
    """The first in the step, beside others that keep only part of their drafts."""
    model, _ = sick
    bad = Request("bad", tuple(text[:30]), 30)
    others = [Request(f"r{i}", tuple(text[i : i + 40]), 30) for i in range(1, 4)]
    futures = [[*bad.prompt, *solo(bad).tokens[:9], POISON, 1, 2, 3, 4]]
    futures += [[*r.prompt, *solo(r).tokens[:8], 0, *solo(r).tokens[9:]] for r in others]
    running = engine(prophet(futures), model=model, max_draft=5)
    tickets = [running.submit(request) for request in (bad, *others)]
    assert "not finite" in collect(tickets[0]).end.error
    for request, ticket in zip(others, tickets[1:], strict=True):
        assert collect(ticket).tokens == solo(request).tokens


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_logits_that_overflow_fail_their_request_alone(
    engine, loaded, altered, text, solo, collect, bad
):
    """The hidden states are finite: only the head overflows, at a token of one request."""
    victim, other = Request("victim", tuple(text[:30]), 12), Request("other", tuple(text[5:60]), 12)
    trigger = solo(victim).tokens[6]
    assert trigger not in solo(other).tokens + solo(victim).tokens[:6]

    def overflowing(normed):
        logits = loaded.model.logits(normed)
        logits[logits.argmax(1) == trigger, 3] = bad
        return logits

    running = engine(model=altered(loaded, logits=overflowing))
    tickets = [running.submit(request) for request in (victim, other)]
    failed, well = map(collect, tickets)
    assert "not finite" in failed.end.error
    assert failed.tokens == solo(victim).tokens[:6]
    assert well.tokens == solo(other).tokens


@pytest.mark.parametrize("slice_", [32, 128])
def test_a_prefix_that_is_not_finite_is_not_kept(engine, text, solo, collect, sick, slice_):
    """The first slice is not finite; the next request must not reuse a prefix made from it."""
    model, ill = sick
    running = engine(model=model, slice=slice_, step_tokens=200)
    prompt = (*text[:10], POISON, *text[11:100])
    request = Request("a", prompt, 8, checkpoints=(30, 64))
    assert "not finite" in collect(running.submit(request)).end.error
    ill[0] = False
    outcome = collect(running.submit(request))
    assert outcome.end.usage.reused == 0
    assert outcome.tokens == solo(request).tokens


# -- listeners ------------------------------------------------------------------------------------


def test_a_listener_that_raises_ends_its_own_request_only(engine, text, solo, collect, caplog):
    running = engine(slots=2)
    heard = []

    def listen(event):
        heard.append(event)
        if len(heard) == 3:
            raise OSError("the client hung up")

    other = Request("other", tuple(text[:30]), 25)
    running.submit(Request("bad", tuple(text[:9]), 400), listen)
    assert collect(running.submit(other)).tokens == solo(other).tokens
    running.close()
    assert heard[-1].reason is FinishReason.CANCELLED
    assert len(heard) <= 5
    assert "listener of request 'bad' failed" in caplog.text


def test_a_listener_that_raises_at_the_end_harms_nobody(engine, text, solo, collect):
    def listen(event):
        raise OSError("closed")

    running = engine()
    running.submit(Request("bad", tuple(text[:9]), 1), listen)
    other = Request("bad2", tuple(text[:30]), 5)
    assert collect(running.submit(other)).tokens == solo(other).tokens
