"""A step that fails at an operation of the state: whichever it is, each request ends once, nothing
that was kept is believed, and what is asked again is answered as without the fault."""

from __future__ import annotations

from collections import Counter

import host_scenes
import prefix_scenes
import pytest

from kinfolk.engine.loading import load_model
from kinfolk.sched.events import Emitted, Finished
from kinfolk.sched.request import FinishReason
from kinfolk.settings import load_settings
from kinfolk.state import operations as kinds
from kinfolk.state.state import State

NEAR = 2e-3
"""Slices of other lengths round otherwise: 4e-4 of the largest logit, in log-probability."""

TURNS, CHATS = 3, 3

KINDS = [
    *(kinds.ClearSlot, kinds.MapChunk, kinds.CopyRecurrent, kinds.StoreRecurrent),
    *(kinds.CopyBlock, kinds.SaveBlock, kinds.LoadBlock, kinds.SaveRecurrent, kinds.LoadRecurrent),
    kinds.DropSaved,
]
"""Of a chat whose checkpoints are on the device and in host memory."""


@pytest.fixture(scope="module")
def loaded(registry, cases):
    options = {"device": "cpu", "dtype": "f32", "context": 512, "slots": 1, "draft": "off"}
    settings = load_settings(checkpoints=2, cache_memory=0.002, **options)
    return load_model(cases / "qwen35.gguf", settings, registry)


@pytest.fixture
def intercept(monkeypatch):
    """``intercept(before)``: ``before`` is called with each operation, ahead of its execution."""
    apply = State.apply

    def start(before):
        def watched(operations):
            for operation in operations:
                before(operation)
                yield operation

        monkeypatch.setattr(
            State, "apply", lambda state, given, **how: apply(state, watched(given), **how)
        )

    return start


def talk(engine, text, vocabulary, after=None):
    """Chats in turn; an answer that fails is asked for again. Returns log-probabilities, and the
    requests that failed. ``after``: what the chats are to have heard."""
    chats = [host_scenes.Chat(n, text, vocabulary) for n in range(CHATS)]
    said, failed = [], []
    for _ in range(TURNS):
        for chat in (*chats, chats[-1]):  # the last one finds its state on the device
            request = chat.next(40, 4)
            events = ask(engine, request)
            if events[-1].reason is FinishReason.ERROR:
                failed.append(events[-1])
                events = ask(engine, request)
            assert events[-1].reason is FinishReason.LENGTH
            said.append([each for event in events[:-1] for each in event.logprobs])
            chat.heard(said[-1] if after is None else after[len(said) - 1])
    return said, failed


def ask(engine, request):
    events = list(engine.submit(request))
    assert all(isinstance(event, Emitted) for event in events[:-1])
    assert isinstance(events[-1], Finished)
    return events


@pytest.fixture(scope="module")
def whole(loaded, text):
    """The answers without a fault, and how often each kind of operation is executed for them."""
    apply, seen = State.apply, Counter()

    def counted(state, operations, **how):
        operations = tuple(operations)
        seen.update(map(type, operations))
        apply(state, operations, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(State, "apply", counted)
        with host_scenes.opened(loaded) as engine:
            said, failed = talk(engine, text, loaded.info.vocabulary)
    assert failed == []
    return said, seen


def test_the_chats_need_every_operation_that_is_to_fail(whole):
    assert set(whole[1]) == set(KINDS)


@pytest.mark.parametrize("part", [0.0, 1.0], ids=["first", "last"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_fault_at_an_operation_costs_one_answer_and_no_other(
    loaded, text, whole, intercept, kind, part
):
    expected, seen = whole
    left = [1 + int(part * (seen[kind] - 1))]

    def before(operation):
        if type(operation) is kind:
            left[0] -= 1
            if left[0] == 0:
                raise RuntimeError("a bit has flipped")

    intercept(before)
    with host_scenes.opened(loaded) as engine:  # recounts at the end
        said, failed = talk(engine, text, loaded.info.vocabulary, after=expected)
        assert engine.stats()["running"] == engine.stats()["waiting"] == 0
    assert left[0] <= 0, "the fault did not happen"
    assert [end.error for end in failed] == ["RuntimeError: a bit has flipped"]
    for number, (found, other) in enumerate(zip(said, expected, strict=True)):
        prefix_scenes.assert_near(found, other, NEAR, number)
