"""Prompts that measure the textbook: ``python -m pocket.textbook.prompts > textbook.json``.

Every prompt asks in words that training never sees. ``seen`` are tasks of the textbook, by
``choosing``, others of them, the sampling is chosen, and ``held_out`` are tasks that are not in it.
They are drawn once and committed before training.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random

from pocket.textbook import tasks
from pocket.textbook.forms import (
    draw_names,
    import_lines,
    signature,
    with_docstring,
    without_types,
)
from pocket.textbook.tasks import Task

SEED = 2026
SEEN, CHOOSING = 40, 40


@dataclass(frozen=True, slots=True)
class Prompt:
    """``text`` is to be continued; with its continuation and ``checks`` it has to run."""

    task: str
    text: str
    checks: str


def draw(task: Task, random: Random) -> Prompt:
    """A prompt for a task: its signature, with an unseen wording as docstring or comment."""
    plain = [s for s in task.solutions if _first_is_main(s.code, task.name)] or [*task.solutions]
    named = draw_names(task, plain[0], random.choice(task.unseen), random)
    code = named.code if random.random() < 0.45 else without_types(named.code)
    if random.random() < 0.75:
        code = with_docstring(code, named.name, named.wording)
        text = signature(code, named.name)
        text += "\n" + code.splitlines()[text.count("\n") + 1]
    else:
        text = f"# {named.wording}\n{signature(code, named.name)}"
    lines = import_lines(code, named.imports)
    return Prompt(task.name, (f"{lines}\n\n\n" if lines else "") + text, named.test())


def draw_all(book: Sequence[Task]) -> dict[str, list[Prompt]]:
    random = Random(SEED)
    learned = random.sample([task for task in book if not task.held_out], SEEN + CHOOSING)
    groups = {
        "seen": learned[:SEEN],
        "choosing": learned[SEEN:],
        "held_out": [task for task in book if task.held_out],
    }
    return {group: [draw(task, random) for task in found] for group, found in groups.items()}


def _first_is_main(code: str, name: str) -> bool:
    return getattr(ast.parse(code).body[0], "name", None) == name


def main() -> None:
    found = {k: [asdict(p) for p in v] for k, v in draw_all(tasks.read_all()).items()}
    json.dump(found, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
