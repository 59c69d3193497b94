"""Chats prefill what is new in a turn, and little more: in every family, with thinking and without,
in tool loops, beside other chats. Their answers are those of cold runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from chat_scenes import SLICE, Chats, talk, tool_loop
from prefix_scenes import assert_near

import kinfolk_gemma4.plugin
import kinfolk_laguna.plugin
import kinfolk_qwen35.plugin
import kinfolk_qwen35moe.plugin
from kinfolk.engine.generation import Generation
from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.engine.options import GenerationOptions
from kinfolk.registry import Registry
from kinfolk.settings import load_settings
from kinfolk.testing.model_files import write_f32

FAMILIES = ("qwen35", "qwen35moe", "gemma4", "gemma4moe", "laguna", "dense")
MARGIN = 64
"""Tokens that may be computed besides those behind the last fork."""
NEAR = 2e-3
"""Slices of other lengths round otherwise: 4e-4 of the largest logit, in log-probability."""

MANY, FEW = 8, 2
KINDS_OF_STATE = ("qwen35", "gemma4", "dense")
"""Families with recurrent state, with windows, and with neither."""
CASES = [
    *((family, thinking, FEW) for family in FAMILIES for thinking in (True, False)),
    *((family, True, MANY) for family in KINDS_OF_STATE),
]
"""Family, whether it thinks, and for how many states there are places on the device; the other
states are in host memory."""


@pytest.fixture(scope="module")
def open_chats(cases: Path, tmp_path_factory) -> Callable[..., Chats]:
    """``open_chats(family, cold=False, checkpoints=8, **limits)``; the caller closes them."""
    example = Path(__file__).parents[2] / "examples" / "kinfolk-qwen3"
    models: dict[tuple[str, int], LoadedModel] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(example))
        import kinfolk_qwen3.plugin
        from kinfolk_qwen3.tiny import tiny

        registry = Registry.build(
            {
                "qwen35": kinfolk_qwen35.plugin,
                "qwen35moe": kinfolk_qwen35moe.plugin,
                "gemma4": kinfolk_gemma4.plugin,
                "laguna": kinfolk_laguna.plugin,
                "qwen3": kinfolk_qwen3.plugin,
            }
        )
        dense = write_f32(tiny().shape, tmp_path_factory.mktemp("dense") / "dense.gguf")

        def load(family: str, checkpoints: int) -> LoadedModel:
            path = dense if family == "dense" else cases / f"{family}.gguf"
            options = {"device": "cpu", "dtype": "f32", "context": 1024, "slots": 3}
            settings = load_settings(checkpoints=checkpoints, **options)
            return load_model(path, settings, registry)

        def make(family: str, *, cold: bool = False, checkpoints: int = 8, **limits) -> Chats:
            for count in {checkpoints, 0} if cold else {checkpoints}:
                if (family, count) not in models:
                    models[family, count] = load(family, count)
            return Chats(
                family,
                models[family, checkpoints],
                models[family, 0] if cold else None,
                **limits,
            )

        yield make


@pytest.fixture
def chats(open_chats):
    """``chats(family, ...)``, closed and recounted at the end of the test."""
    opened: list[Chats] = []

    def make(family: str, **options) -> Chats:
        opened.append(open_chats(family, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.close()


@pytest.mark.parametrize(("family", "thinking", "places"), CASES)
def test_a_turn_prefills_what_is_behind_the_last_header(chats, family, thinking, places):
    """Ten turns, and a second chat in between, with a turn after every other one."""
    here = chats(family, cold=True, checkpoints=places)
    fork, reused_from = {"a": 0, "b": 0}, set()
    for turn, both in enumerate(zip(talk(10, about="Why"), talk(10, about="Who"), strict=True)):
        for name, messages in zip("ab" if turn % 2 else "a", both, strict=False):
            prompt = here.prompt(messages, thinking=thinking)
            (end,) = here.ask(prompt)
            if turn:
                read = end.usage.prompt - end.usage.reused
                last = fork[name] or prompt.checkpoints[0]
                assert read <= end.usage.prompt - last + MARGIN, (name, turn)
                reused_from.add(end.usage.reused_from)
            fork[name] = prompt.checkpoints[-1]
        if turn in (3, 9):
            found, expected, reused = here.unbiased(prompt)
            assert reused >= fork[name] - MARGIN
            assert_near(found, expected, NEAR, turn)
    assert "host" in reused_from or places == MANY


@pytest.mark.parametrize(("family", "thinking", "places"), CASES)
def test_a_tool_loop_prefills_what_is_behind_the_last_header(chats, family, thinking, places):
    here = chats(family, cold=True, checkpoints=places)
    fork = 0
    for step, messages in enumerate(tool_loop(3, thinking=thinking)):
        prompt = here.prompt(messages, thinking=thinking, tools=True)
        (end,) = here.ask(prompt)
        assert end.usage.prompt - end.usage.reused <= end.usage.prompt - fork + MARGIN, step
        fork = prompt.checkpoints[-1]
    found, expected, reused = here.unbiased(prompt)
    assert reused >= fork - MARGIN
    assert_near(found, expected, NEAR, "the last")


def test_an_answer_that_is_sent_back_as_it_was_is_reused(chats):
    """In a tool loop with reasoning sent back, nothing of the answer is computed again."""
    here = chats("qwen35")
    first, second, *_ = tool_loop(2, thinking=True)
    (before,) = here.ask(here.prompt(first, thinking=True, tools=True))
    (end,) = here.ask(here.prompt(second, thinking=True, tools=True))
    assert end.usage.reused == before.usage.prompt + before.tokens - 1


@pytest.mark.parametrize("family", FAMILIES)
def test_a_second_chat_with_the_same_system_prompt_computes_its_own(chats, family):
    here = chats(family)
    system = "Be brief. " * 80
    (first,) = talk(1, about="Why", system=system)
    (other,) = talk(1, about="What about that", system=system)
    here.ask(here.prompt(first, thinking=True))
    prompt = here.prompt(other, thinking=True)
    (end,) = here.ask(prompt)
    own = len(prompt.tokens) - len(here.words.encode(system))
    assert end.usage.prompt - end.usage.reused <= own + MARGIN


@pytest.mark.parametrize("family", KINDS_OF_STATE)
def test_titles_and_tags_do_not_push_out_the_chat_that_they_came_from(chats, family):
    here = chats(family, checkpoints=5)
    fork = 0
    for turn, messages in enumerate(talk(6, about="Why")):
        prompt = here.prompt(messages, thinking=True)
        (end,) = here.ask(prompt)
        assert end.usage.prompt - end.usage.reused <= end.usage.prompt - fork + MARGIN, turn
        fork = prompt.checkpoints[-1]
        for side in ("a title", "tags", "follow-ups"):
            question = {"role": "user", "content": f"Find {side} for the chat number {turn}."}
            here.ask(here.prompt([messages[0], question], thinking=False), tokens=2)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("length", [64, 65])
def test_the_choices_of_a_prompt_are_prefilled_once(chats, family, length):
    """The prompt, and its last token again for each further answer; the same first tokens."""
    here = chats(family)
    text = "".join(chr(ord("a") + (i * i) % 26) for i in range(length))
    prompt = replace(
        here.prompt([{"role": "user", "content": "?"}], thinking=False),
        tokens=tuple(here.words.encode(text)),
        checkpoints=(),
    )
    # Long enough that all have been submitted before the first one ends: else its state stays.
    ends = here.ask(prompt, choices=4, tokens=64)
    read = [end.usage.prompt - end.usage.reused for end in ends]
    assert read == [length, 1, 1, 1]
    assert here.runtime.engine.stats()["prefix_drops_choices"] == 1


def test_choices_differ_and_are_those_of_cold_runs(chats):
    """With temperature: each has its own seed, wherever its prompt was computed."""
    here = chats("qwen35", cold=True)
    (messages,) = talk(1, about="Why")
    prompt = here.prompt(messages, thinking=True)
    options = GenerationOptions(
        max_tokens=6, temperature=1.0, seed=5, choices=4, ignore_eos=True, logprobs=4
    )
    found: list[list[list]] = []
    for runtime in (here.runtime, here.cold):
        tickets = [
            runtime.engine.submit(request)
            for request in Generation(runtime, prompt, options).requests
        ]
        found.append([[each for e in list(t)[:-1] for each in e.logprobs] for t in tickets])
    assert len({tuple(each.token for each in answer) for answer in found[0]}) > 1
    for one, other in zip(*found, strict=True):
        assert one[0].token == other[0].token
        assert abs(one[0].logprob - other[0].logprob) <= NEAR


def test_a_prompt_that_keeps_nothing_leaves_nothing(chats):
    here = chats("qwen35", checkpoint_every=SLICE)
    (messages,) = talk(1, about="Why")
    prompt = replace(here.prompt(messages, thinking=True), keep=False)
    here.ask(prompt, choices=3)
    assert here.runtime.engine.stats()["prefixes"] == 0


def test_a_long_prompt_that_is_cancelled_leaves_its_grid(chats):
    here = chats("qwen35", checkpoint_every=SLICE)
    (messages,) = talk(1, about="Why", system="Be brief. " * 70)
    prompt = here.prompt(messages, thinking=True)
    request = Generation(here.runtime, prompt, GenerationOptions(max_tokens=4)).requests[0]
    engine = here.runtime.engine
    ticket = engine.submit(request)
    while engine.stats()["prefixes"] < 2:
        time.sleep(0.001)
    ticket.cancel()
    *_, end = ticket
    again = replace(request, id="again")
    *_, end = engine.submit(again)
    assert end.usage.reused >= 2 * SLICE


def test_what_was_reused_is_counted(chats):
    here = chats("qwen35")
    for messages in talk(3, about="Why"):
        (end,) = here.ask(here.prompt(messages, thinking=True))
    stats = here.runtime.engine.stats()
    assert (stats["prefix_lookups"], stats["prefix_hits"]) == (3, 2)
    assert stats["prefix_tokens"] > end.usage.reused > 0
