"""A completion passes by its own code, and only its unfinished end is forgiven."""

from __future__ import annotations

import pytest
from pocket.criterion import cut, judge, worst_repeat

PROMPT = "def f(n):"
BODY = "\n    a = n\n    b = a\n    return b\n"


def passed(completion: str, tokens: list[int] | None = None, ended: bool = False) -> bool:
    return judge(PROMPT, completion, tokens or list(range(40)), ended).passed


def test_three_statements_pass_and_two_do_not() -> None:
    assert passed(BODY)
    assert not passed("\n    a = n\n    return a\n")


@pytest.mark.parametrize(
    "end",
    ["    retu", "    for x i", "    c = (1,\n         2", '    """text\n  more', "    if a:\n"],
)
def test_an_unfinished_end_is_cut(end: str) -> None:
    assert passed(BODY + end)


def test_a_try_without_its_handler_is_cut_as_a_whole() -> None:
    assert cut("x = 1\ntry:\n    a()\n", False) == "x = 1\n"
    assert cut("x = 1\ntry:\n    a()\nexcept E:\n    b()\ny =", False) == (
        "x = 1\ntry:\n    a()\nexcept E:\n    b()\n"
    )


@pytest.mark.parametrize(
    "wrong",
    ["    x = = 1\n", "    return ]\n", "  y = 1\n", "    x = 'open\n", "    x = 07\n", "    \0\n"],
)
def test_what_is_wrong_in_the_middle_is_never_cut_away(wrong: str) -> None:
    assert not passed(BODY + wrong + "    z = 3\n")


def test_a_last_line_counts_once_the_model_ended_the_text() -> None:
    completion = "\n    a = n\n    b = a\n    return b"
    assert not passed(completion)
    assert passed(completion, ended=True)


def test_docstrings_are_no_statements() -> None:
    assert not passed('\n    """One."""\n    a = n\n    return a\n')


def test_statements_of_the_prompt_do_not_count() -> None:
    prompt = "x = 1\ny = 2\nz = 3\nif x:"
    assert judge(prompt, "\n    y = 3\n", [], False).statements == 1


def test_runs_of_eight_tokens_may_come_three_times() -> None:
    run = list(range(8))
    assert worst_repeat(run * 3) == 3
    assert passed(BODY, run * 3)
    assert not passed(BODY, run * 4)
    assert worst_repeat([1] * 11) == 4
    assert worst_repeat([1] * 7) == 0
