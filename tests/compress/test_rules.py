"""Which prompts are compressed."""

from __future__ import annotations

import pytest

from kinfolk.compress.back_off import FIRST_WAIT, LONGEST_WAIT, BackOff
from kinfolk.compress.rules import ChosenMessages, choose_messages

SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "u"}
ANSWER = {"role": "assistant", "content": "a"}
CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}
RESULT = {"role": "tool", "content": "r"}


def choose(messages, *, tools=False, mode="always", tokens=50000, threshold=32000):
    return choose_messages(messages, tools=tools, mode=mode, tokens=tokens, threshold=threshold)


def test_a_first_question_is_compressed_as_a_whole_but_for_what_instructs():
    assert choose([SYSTEM, USER]) == ChosenMessages((1,), together=True)
    assert choose([USER]) == ChosenMessages((0,), together=True)
    assert choose([SYSTEM, USER, USER]) == ChosenMessages((1, 2), together=True)
    assert choose([{"role": "developer", "content": "d"}, USER]) == ChosenMessages(
        (1,), together=True
    )


@pytest.mark.parametrize("mode", ["auto", "always"])
@pytest.mark.parametrize("messages", [[USER, CALL, RESULT, USER], [USER, RESULT], [CALL, USER]])
def test_calls_and_their_results_are_never_compressed(messages, mode):
    assert choose(messages, mode=mode) == "tools"


def test_with_tools_nothing_is_compressed():
    assert choose([SYSTEM, USER], tools=True) == "tools"


def test_of_a_conversation_only_what_is_before_the_last_two_messages_is_and_each_alone():
    assert choose([SYSTEM, USER, ANSWER]) == "nothing"
    assert choose([SYSTEM, USER, ANSWER, USER]) == ChosenMessages((1,), together=False)
    assert choose([USER, ANSWER, USER, ANSWER, USER]) == ChosenMessages((0, 1, 2), together=False)
    assert choose([SYSTEM, ANSWER, USER]) == "nothing"


def test_what_is_chosen_stays_chosen_in_every_later_turn():
    conversation, chosen = [SYSTEM, USER], set()
    for _ in range(6):
        conversation += [ANSWER, USER]
        now = set(choose(conversation).messages)
        assert chosen <= now
        chosen = now


def test_auto_needs_a_long_prompt_and_always_does_not():
    for tokens, expected in [(31999, "short"), (32000, ChosenMessages((0,), together=True))]:
        assert choose([USER], mode="auto", tokens=tokens) == expected
    assert choose([USER], mode="always", tokens=1) == ChosenMessages((0,), together=True)
    assert choose([USER], mode="off") == "off"


def test_what_has_no_text_is_not_chosen():
    assert choose([{"role": "user", "content": "  "}, USER]) == ChosenMessages((1,), together=True)
    assert choose([SYSTEM]) == "nothing"


def test_after_each_failure_in_a_row_the_wait_is_longer():
    now = [100.0]
    back_off = BackOff(lambda: now[0])
    assert not back_off.waiting
    waits = []
    for _ in range(12):
        back_off.failed()
        start = now[0]
        while back_off.waiting:
            now[0] += 0.5
        waits.append(now[0] - start)
    assert waits[:3] == [FIRST_WAIT, 2 * FIRST_WAIT, 4 * FIRST_WAIT]
    assert waits[-1] == LONGEST_WAIT
    back_off.succeeded()
    back_off.failed()
    now[0] += FIRST_WAIT
    assert not back_off.waiting
