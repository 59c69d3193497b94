"""The textbook: its code runs, in every form, and its evaluation prompts stay unseen."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from pocket import exercises
from pocket.sampling import Completion, Sampling
from pocket.textbook import book, forms, prompts, recall, tasks
from pocket.textbook.execution import passes, problem
from pocket.textbook.renaming import rename

ALL = tasks.read_all()
LEARNED = [task for task in ALL if not task.held_out]
FORMS = 3


@pytest.mark.parametrize("chapter", sorted({task.chapter for task in ALL}))
def test_every_solution_of_a_chapter_runs_in_drawn_forms(chapter: str) -> None:
    random = Random(chapter)
    for task in ALL:
        if task.chapter != chapter:
            continue
        for solution in task.solutions:
            one = replace(task, solutions=(solution,), wordings=task.wordings or task.unseen)
            for _ in range(FORMS):
                document = forms.write(one, random)
                wrong = problem(document.program)
                assert wrong is None, f"{task.name}: {wrong}\n{document.program}"


def test_there_are_a_few_hundred_tasks_and_twenty_that_are_held_out() -> None:
    assert len(LEARNED) >= 300
    assert len(ALL) - len(LEARNED) == 20


def test_no_document_has_a_wording_or_a_task_that_is_held_out() -> None:
    random = Random(1)
    written = "\n".join(forms.write(task, random).text for task in LEARNED for _ in range(4))
    wordings = [wording for task in ALL for wording in task.unseen]
    unseen = [re.sub(r"\\\{\w+\\\}", r"\\w+", re.escape(wording)) for wording in wordings]
    found = re.search(f'(?:"""|# )(?:{"|".join(unseen)})', written)
    assert not found, found
    held_out = [name for task in ALL if task.held_out for name in task.names]
    found = re.search(rf"(?:def|class) (?:{'|'.join(held_out)})\b", written)
    assert not found, found


def test_the_committed_prompts_are_those_of_the_chapters() -> None:
    stated = json.loads(exercises.PROMPTS.read_text(encoding="utf-8"))
    drawn = prompts.draw_all(ALL)
    assert {k: [(p.task, p.text, p.checks) for p in v] for k, v in drawn.items()} == {
        k: [(p["task"], p["text"], p["checks"]) for p in v] for k, v in stated.items()
    }
    assert [len(stated[group]) for group in ("seen", "choosing", "held_out")] == [40, 40, 20]


def test_every_prompt_can_be_answered() -> None:
    """A prompt is the beginning of a solution; the rest of that solution passes the checks."""
    random = Random(0)
    for task in ALL:
        solution = task.solutions[0]
        named = forms.draw_names(task, solution, task.unseen[0], random)
        lines = forms.import_lines(named.code, named.imports)
        assert problem(f"{lines}\n{named.code}\n{named.test()}") is None


def test_a_task_is_written_in_many_different_forms() -> None:
    random = Random(0)
    for task in LEARNED:
        texts: set[str] = set()
        for _ in range(16):
            texts.add(forms.write(task, random).text)
            if len(texts) == 6:
                break
        else:
            pytest.fail(f"{task.name}: {len(texts)} different forms of 16")


def test_the_same_seed_writes_the_same_book() -> None:
    one, two = (book.write_task(LEARNED[0], seed=5, forms=10) for _ in range(2))
    assert one == two
    assert one != book.write_task(LEARNED[0], seed=6, forms=10)


def test_documents_that_do_not_run_are_left_out_and_named() -> None:
    wrong = replace(LEARNED[0], checks=("assert False",))
    written = book.write_task(wrong, seed=0, forms=4)
    assert written.texts == []
    assert written.failed[0].startswith(f"{wrong.name}: AssertionError")


@pytest.mark.parametrize("number", range(8))
def test_a_recall_file_runs_and_ends_with_its_constants(number: int) -> None:
    text = recall.write_recall(LEARNED, f"test {number}")
    assert problem(text) is None
    defined = re.findall(r"^([A-Z_]+) = ", text, flags=re.MULTILINE)
    assert any(name in text[-400:] for name in defined)


def test_a_recall_prompt_and_its_answer_are_a_whole_file() -> None:
    drawn = recall.draw_recall(LEARNED, "a test", 10_500)
    assert drawn.prompt.endswith(" ==")
    assert passes(drawn.prompt + drawn.answer)
    value = drawn.answer.strip()
    assert value in drawn.prompt[:800]


def test_a_chapter_with_a_mistake_is_refused_by_file_and_task(tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text('"""Odd."""\n\n# == f\n# - Do it.\ndef f():\n    pass\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"odd\.py: # == f: a task needs"):
        tasks.read(file)


# -- forms ----------------------------------------------------------------------------------------


def test_renaming_leaves_strings_and_attributes_alone() -> None:
    code = 'x = f(n, "n", o.n)  # n\ny = f"{n} n {n:>3} {{n}}"'
    assert rename(code, {"n": "k"}) == 'x = f(k, "n", o.n)  # n\ny = f"{k} n {k:>3} {{n}}"'
    assert rename("self.n = n", {".n": "m"}) == "self.m = n"


def test_types_are_taken_off_and_nothing_else_changes() -> None:
    head = "def f(a: int, b: list[int] = None, *c: str) -> dict[str, int]:"
    code = f"{head}\n    d: int = a\n    return d"
    assert forms.without_types(code) == "def f(a, b=None, *c):\n    d = a\n    return d"


def test_a_docstring_stands_in_the_main_definition_only() -> None:
    code = "def helper(n):\n    return n\n\n\ndef f(n):\n    return helper(n)"
    shown = forms.with_docstring(code, "f", "Do it.")
    assert ast.get_docstring(ast.parse(shown).body[1]) == "Do it."  # type: ignore[arg-type]
    assert ast.get_docstring(ast.parse(shown).body[0]) is None  # type: ignore[arg-type]


# -- judging --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "good"),
    [
        ("x = 1", True),
        ("assert False", False),
        ("def f(:", False),
        ("import sys; sys.exit(3)", False),
        ("bytearray(3 * 2**30)", False),
        ("input()", False),
    ],
)
def test_a_program_passes_if_it_ends_without_an_error(program: str, good: bool) -> None:
    assert passes(program) is good


class Recites:
    """A completer that knows one answer."""

    def __init__(self, text: str) -> None:
        self.text = text

    def complete(
        self, prompts: list[str], seeds: list[int], how: Sampling, count: int
    ) -> list[Completion]:
        return [Completion([], self.text, True) for _ in prompts]


def test_a_right_answer_passes_and_a_wrong_one_does_not() -> None:
    right = "\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a\n"
    report = exercises.try_first_command(Recites(right), exercises.GREEDY)
    assert (report["passes"], report["of"]) == (10, 10)
    report = exercises.try_first_command(Recites("\n    return n\n"), exercises.GREEDY)
    assert report["passes"] == 0
