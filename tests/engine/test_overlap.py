"""Steps that start before the previous result is read: only the timing changes."""

from __future__ import annotations

from threading import Event

import pytest

from kinfolk.engine.model_runner import ModelRunner
from kinfolk.sched.events import Finished
from kinfolk.sched.request import FinishReason, Request, Sampling

WARM = Sampling(temperature=0.9, top_p=0.95, seed=3)


@pytest.fixture(scope="module")
def recorded(load):
    """The model with recorded steps: only these can be followed."""
    return load(graphs="on")


@pytest.fixture
def run(engine, recorded, collect):
    """``run(requests, **limits)``: their outcomes, together in an engine of their own."""

    def together(requests, **limits):
        running = engine(model=recorded, **limits)
        outcomes = [collect(ticket) for ticket in [running.submit(r) for r in requests]]
        stats = running.stats()
        assert stats["waits"] == stats["steps"]
        assert stats["replays"] + stats["eager_steps"] == stats["steps"]
        return outcomes

    return together


@pytest.fixture
def no_overlap(run):
    return lambda requests, **limits: run(requests, overlap=False, **limits)


def test_a_step_is_running_before_the_one_before_it_is_read(
    engine, recorded, text, collect, monkeypatch
):
    running, order = engine(model=recorded), []
    launch, collect_step = ModelRunner.launch, ModelRunner.collect

    def launched(runner, plan, *rest):
        order.append(("launch", plan.step_id))
        return launch(runner, plan, *rest)

    def collected(runner, step):
        order.append(("collect", step.plan.step_id))
        return collect_step(runner, step)

    monkeypatch.setattr(ModelRunner, "launch", launched)
    monkeypatch.setattr(ModelRunner, "collect", collected)
    collect(running.submit(Request("a", tuple(text[:20]), 12)))
    steps = max(step for _, step in order)
    assert steps == 12, "no step more than there are tokens"
    # The first is that of the prompt.
    for step in range(2, steps):
        assert order.index(("launch", step + 1)) < order.index(("collect", step))


@pytest.mark.parametrize("sampling", [Sampling(), WARM], ids=["greedy", "sampled"])
def test_a_stop_at_any_position_ends_there_and_what_is_kept_is_right(
    run, no_overlap, engine, recorded, text, collect, sampling
):
    prompt = tuple(text[:70])
    whole = no_overlap([Request("a", prompt, 12, sampling)])[0].tokens
    for position in range(1, 12):
        stop = frozenset({whole[position]})
        expected = whole[: whole.index(whole[position]) + 1]
        running = engine(model=recorded)
        first = Request("first", prompt, 30, sampling, stop=stop, keep=True)
        outcome = collect(running.submit(first))
        assert outcome.tokens == expected
        assert outcome.end.reason is FinishReason.STOP
        follow = Request("next", (*prompt, *expected, 5, 6), 6, sampling)
        again = collect(running.submit(follow))
        assert again.end.usage.reused >= len(prompt) + len(expected) - 1
        assert again.tokens == no_overlap([follow])[0].tokens


def test_requests_of_every_length_beside_each_other(run, no_overlap, text):
    requests = [
        Request(
            str(number),
            tuple(text[number : number + 10 + 9 * number]),
            1 + 5 * number % 17,
            (Sampling(), WARM)[number % 2],
        )
        for number in range(12)
    ]
    for limits in ({"slots": 3}, {"slots": 8, "quantum": 2}, {"slots": 8, "step_sequences": 2}):
        for one, other in zip(run(requests, **limits), no_overlap(requests, **limits), strict=True):
            assert one.tokens == other.tokens
            assert one.end == other.end


@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.STOP])
def test_cancelled_in_the_middle(engine, recorded, no_overlap, text, gate, collect, reason):
    """A cancellation waits for the running steps, so that the state stays consistent."""
    running = engine(model=recorded)
    kept = Request("kept", tuple(text[:30]), 40)
    expected = no_overlap([kept])[0].tokens
    listener = gate(running, 4)
    running.submit(Request("gone", tuple(text[5:60]), 40, keep=True), listener)
    listener.wait()
    ticket = running.submit(kept)
    running.cancel("gone", reason)
    assert listener.result().end.reason is reason
    assert collect(ticket).tokens == expected


def test_probabilities_take_their_turn(run, no_overlap, text):
    prompt = tuple(text[:25])
    requests = [
        Request("a", prompt, 8, Sampling(logprobs=2)),
        Request("b", prompt, 9, Sampling(repetition_penalty=1.3)),
        Request("c", prompt, 14),
    ]
    for one, other in zip(run(requests), no_overlap(requests), strict=True):
        assert one.tokens == other.tokens


BIASED_TOKENS = tuple((token, 40.0) for token in range(50, 58))
EDITED = [
    Sampling(presence_penalty=1.5, logit_bias=BIASED_TOKENS),
    Sampling(temperature=0.8, frequency_penalty=0.7, logit_bias=BIASED_TOKENS, seed=4),
    Sampling(temperature=1.1, repetition_penalty=1.4, presence_penalty=0.3, seed=5),
    Sampling(logit_bias=(*BIASED_TOKENS[:3], (53, float("-inf")))),
    WARM,
]


@pytest.mark.parametrize("limits", [{"slots": 5}, {"slots": 2, "quantum": 3}])
def test_penalties_are_counted_on_the_device(engine, recorded, load, text, collect, limits):
    """They equal those of steps that wait for each other; slots are reused meanwhile."""
    requests = [
        Request(str(n), tuple(text[n : n + 20 + 7 * n]), 25 - 2 * n, sampling)
        for n, sampling in enumerate(EDITED * 2)
    ]
    running, plain = (engine(model=x, **limits) for x in (recorded, load(graphs="off")))
    found, expected = (
        [collect(ticket) for ticket in [side.submit(r) for r in requests]]
        for side in (running, plain)
    )
    for one, other in zip(found, expected, strict=True):
        assert one.tokens == other.tokens
    stats = running.stats()
    assert stats["replays"] > stats["eager_steps"]
    # Values that a recorded step cannot hold are uploaded after it.
    assert stats["uploads"] <= stats["replays"] + 2 * stats["eager_steps"]


@pytest.mark.parametrize("step", [3, 4, 7])
def test_a_step_that_fails_ends_what_runs_and_the_next_request_is_served(
    engine, recorded, altered, no_overlap, text, collect, step
):
    left = [step]

    def forward(batch, view):
        left[0] -= 1
        if left[0] == 0:
            raise RuntimeError("a cable was pulled")
        return recorded.model.forward(batch, view)

    running = engine(model=altered(recorded, forward=forward))
    request = Request("a", tuple(text[:20]), 15)
    whole = no_overlap([request])[0].tokens
    failed = collect(running.submit(request))
    assert "a cable was pulled" in failed.end.error
    assert failed.tokens == whole[: step - 1], "what was launched before is collected"
    assert collect(running.submit(request)).tokens == whole


def test_a_result_that_cannot_be_read_ends_what_runs_and_the_step_launched_behind_it_is_dropped(
    engine, recorded, no_overlap, text, collect, monkeypatch
):
    request = Request("a", tuple(text[:20]), 15)
    whole = no_overlap([request])[0].tokens
    running, collected = engine(model=recorded), []
    read = ModelRunner.collect

    def fail(runner, step):
        collected.append(step.plan.step_id)
        if len(collected) == 4:
            raise RuntimeError("a cable was pulled")
        return read(runner, step)

    monkeypatch.setattr(ModelRunner, "collect", fail)
    failed = collect(running.submit(request))
    assert "a cable was pulled" in failed.end.error
    assert failed.tokens == whole[:3]
    assert collect(running.submit(request)).tokens == whole
    assert collected[3:5] == [4, 6], "step 5 was launched, and nobody waits for it"


# -- behind drafts of the host, whose step waits for the one before it ----------------------------


@pytest.fixture
def prophecy(engine, recorded, prophet, no_overlap, text):
    """An engine whose drafts are right but for every third token, a request, and its tokens."""
    request = Request("a", tuple(text[:20]), 24)
    whole = no_overlap([request])[0].tokens
    drafter = prophet([[*request.prompt, *whole]], wrong=3)
    return engine(drafter, model=recorded, max_draft=5), request, whole


def test_the_next_step_is_launched_before_anybody_hears_of_drafted_tokens(prophecy, monkeypatch):
    (running, request, whole), order = prophecy, []
    launch = ModelRunner.launch

    def launched(runner, plan, *rest):
        order.append(f"launch {plan.step_id}")
        return launch(runner, plan, *rest)

    monkeypatch.setattr(ModelRunner, "launch", launched)
    told, ended = [], Event()

    def hear(event):
        order.append("hear")
        told.extend(getattr(event, "tokens", ()))
        if isinstance(event, Finished):
            ended.set()

    running.submit(request, hear)
    assert ended.wait(60)
    assert told == whole
    steps = order.count("hear") - 1
    # Not behind the prompt, whose first token is to come soon.
    expected = ["launch 1", "hear", "launch 2"]
    for step in range(3, steps + 1):
        expected += [f"launch {step}", "hear"]
    assert 3 < steps < len(whole)
    assert order == [*expected, "hear", "hear"]


@pytest.mark.parametrize("broken", [3, 5])
def test_what_was_read_is_told_before_the_failure_of_the_next_launch(
    prophecy, collect, monkeypatch, broken
):
    (running, request, whole), launches = prophecy, []
    launch = ModelRunner.launch

    def launched(runner, plan, *rest):
        launches.append(plan)
        if len(launches) == broken:
            raise RuntimeError("a cable was pulled")
        return launch(runner, plan, *rest)

    monkeypatch.setattr(ModelRunner, "launch", launched)
    failed = collect(running.submit(request))
    assert "a cable was pulled" in failed.end.error
    # The step of the prompt, and then two right drafts and what follows them in each.
    assert failed.tokens == whole[: 1 + 3 * (broken - 2)]
    assert collect(running.submit(request)).tokens == whole


def test_a_listener_that_cancels_ends_its_request_after_the_step_that_runs(prophecy):
    running, request, whole = prophecy
    heard, ended = [], Event()

    def hear(event):
        heard.extend(getattr(event, "tokens", ()))
        if isinstance(event, Finished):
            ended.set()
        elif len(heard) > 1:
            running.cancel("a")

    running.submit(request, hear)
    assert ended.wait(60)
    assert heard == whole[: len(heard)]
    assert len(heard) < len(whole)
