"""What starts from a checkpoint in host memory is what starts from the device, bit for bit."""

from __future__ import annotations

import copy
from dataclasses import replace

import host_scenes
import prefix_scenes
import pytest
from host_scenes import HEADER, Chat

from kinfolk.engine.executor import EagerExecutor
from kinfolk.engine.loading import load_model
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings
from kinfolk.state.copies import HostStreams
from kinfolk.state.operations import SaveRecurrent
from kinfolk.state.state import State

NEAR = 2e-3
"""Slices of other lengths round otherwise: 4e-4 of the largest logit, in log-probability."""

FAMILIES = ["qwen35", "qwen35moe", "gemma4", "gemma4moe", "laguna"]


@pytest.fixture(scope="module")
def model(registry, cases):
    def load(family, checkpoints, gib):
        options = {"device": "cpu", "dtype": "f32", "context": 512, "slots": 1}
        settings = load_settings(checkpoints=checkpoints, cache_memory=gib, **options)
        return load_model(cases / f"{family}.gguf", settings, registry)

    return load


@pytest.mark.parametrize(
    ("family", "spare_slots"), [*((family, 0) for family in FAMILIES), ("qwen35", 1)]
)
def test_eight_chats_with_places_for_two_go_on_as_with_places_for_all(
    model, text, family, spare_slots
):
    few = model(family, 2, 0.25)
    few = replace(few, limits=replace(few.limits, spare_slots=spare_slots))
    said = host_scenes.few_and_many(few, text)
    for number, ((found, usage), (expected, other)) in enumerate(zip(*said, strict=True)):
        assert found == expected
        assert usage.reused == other.reused
        assert (usage.reused > 0) == (number >= 8)
        assert usage.reused_from == ("host" if number >= 8 else None)
        assert other.reused_from == ("device" if number >= 8 else None)


@pytest.mark.parametrize("family", FAMILIES)
def test_each_turn_of_ten_reads_only_what_is_new_and_answers_as_a_cold_run(model, text, family):
    """Two chats in turn, each of which keeps its last header and the end of its answer, with places
    for two states on the device: every turn finds what it needs in host memory."""
    few, none = model(family, 2, 0.25), model(family, 0, 0)
    message, asked, said = 20, [], []
    chats = [Chat(n, text, few.info.vocabulary) for n in range(2)]
    with host_scenes.opened(few) as engine:
        for _ in range(10):
            for chat in chats:
                asked.append(chat.next(message, 3))
                found, end = host_scenes.answered(engine, asked[-1])
                if chat.turn > 1:
                    read = end.usage.prompt - end.usage.reused
                    assert read <= message + HEADER + 1, "and the last token of the answer before"
                    assert end.usage.reused_from == "host"
                chat.heard(found)
                said.append(found)
    with host_scenes.opened(none) as engine:
        for number in (3, 10, 18, 19):
            expected, _ = host_scenes.answered(engine, asked[number])
            prefix_scenes.assert_near(said[number], expected, NEAR, number)


@pytest.mark.parametrize("family", ["qwen35", "gemma4", "laguna"])
def test_a_turn_that_may_fill_the_context_reads_only_what_is_new(model, text, family):
    """With one slot it is promised every block, and its own prefix leaves the device for it."""
    few, none = model(family, 2, 0.25), model(family, 0, 0)
    said, asked = [], []
    with host_scenes.opened(few) as engine:
        chat = Chat(0, text, few.info.vocabulary)
        for turn in range(3):
            request = chat.next(70, 4)
            asked.append(replace(request, max_new=few.limits.context - len(request.prompt)))
            ticket, found = engine.submit(asked[-1]), []
            for event in ticket:
                found += event.logprobs
                if len(found) >= 3:
                    break
            ticket.cancel()
            *_, end = ticket
            said.append(found[:3])
            chat.heard(said[-1])
            assert end.usage.reused_from == ("host" if turn else None)
            assert end.usage.prompt - end.usage.reused <= 70 + 2 * HEADER + 4
    with host_scenes.opened(none) as engine:
        for turn, request in enumerate(asked):
            expected, _ = host_scenes.answered(engine, replace(request, max_new=3))
            prefix_scenes.assert_near(said[turn], expected, NEAR, turn)


def test_saves_are_launched_behind_the_step_of_their_plan(model, text, monkeypatch):
    """The device would have nothing to do while the host launches them."""
    few, launched = model("qwen35", 2, 0.25), []
    few = replace(few, limits=replace(few.limits, spare_slots=1))
    step, copy_out = EagerExecutor.launch, HostStreams.on_copies
    monkeypatch.setattr(
        EagerExecutor, "launch", lambda *given: (launched.append("step"), step(*given))[1]
    )
    monkeypatch.setattr(
        HostStreams, "on_copies", lambda *given: (launched.append("copy"), copy_out(*given))[1]
    )
    save = State.apply

    def applied(state, operations, **given):
        saving = any(isinstance(each, SaveRecurrent) for each in operations)
        launched.extend(["saving"] if saving else [])
        save(state, operations, **given)

    monkeypatch.setattr(State, "apply", applied)
    with host_scenes.opened(few) as engine:
        chat = Chat(0, text, few.info.vocabulary)
        for _ in range(4):
            found, _ = host_scenes.answered(engine, chat.next(20, 3))
            chat.heard(found)
    after = [launched[n + 1] for n, what in enumerate(launched) if what == "saving"]
    assert after
    assert set(after) == {"step"}


def test_host_memory_holds_no_more_than_it_may_and_nothing_in_the_end(model, text):
    """With room for a few states others are gone, and what is read again is right."""
    small, none = model("qwen35", 2, 0.002), model("qwen35", 0, 0)
    host = small.limits.host_bytes
    with host_scenes.opened(small) as engine:
        chats = [host_scenes.Chat(n, text, small.info.vocabulary) for n in range(12)]
        said = host_scenes.talk(engine, chats, turns=2, message=40, answer=4)
        assert 0 < engine.stats()["host_bytes"] <= host
    with host_scenes.opened(none) as engine:
        chats = [host_scenes.Chat(n, text, small.info.vocabulary) for n in range(12)]
        expected = host_scenes.talk(engine, chats, 2, 40, 4, after=said)
    for number, ((found, _), (other, _)) in enumerate(zip(said, expected, strict=True)):
        prefix_scenes.assert_near(found, other, NEAR, number)
    assert any(usage.reused == 0 for _, usage in said[12:])
    assert any(usage.reused_from == "host" for _, usage in said)


def test_a_fault_leaves_nothing_in_host_memory(model, text):
    loaded = model("qwen35", 2, 0.25)
    broken, plain = [False], copy.copy(loaded.model)

    def forward(batch, state):
        if broken[0]:
            raise RuntimeError("a cable was pulled")
        return loaded.model.forward(batch, state)

    plain.forward = forward
    with host_scenes.opened(replace(loaded, model=plain)) as engine:
        chats = [host_scenes.Chat(n, text, loaded.info.vocabulary) for n in range(4)]
        before = host_scenes.talk(engine, chats, 1, 22, 4)
        assert engine.stats()["host_rows"] > 0
        broken[0] = True
        *_, end = engine.submit(Request("fails", tuple(chats[0].text[:30]), 2))
        assert "a cable was pulled" in end.error
        assert engine.stats()["host_rows"] == engine.stats()["host_bytes"] == 0
        broken[0] = False
        chats = [host_scenes.Chat(n, text, loaded.info.vocabulary) for n in range(4)]
        after = host_scenes.talk(engine, chats, 2, 22, 4)
    assert [said for said, _ in after[:4]] == [said for said, _ in before]
    assert [usage.reused_from for _, usage in after] == [None] * 4 + ["host"] * 4


def test_without_host_memory_the_oldest_are_dropped(model, text):
    loaded = model("qwen35", 2, 0)
    with host_scenes.opened(loaded) as engine:
        chats = [host_scenes.Chat(n, text, loaded.info.vocabulary) for n in range(3)]
        said = host_scenes.talk(engine, chats, turns=2, message=10, answer=2)
        stats = engine.stats()
    assert [usage.reused for _, usage in said] == [0] * 6
    assert stats["demotions"] == stats["saves"] == stats["host_bytes"] == 0
