"""The tasks of the textbook, read from its chapters.

A chapter is a Python file that runs. Comments above the solutions of a task say what may vary::

    # == is_prime, check_prime            names; ``==!`` keeps the whole task out of training
    # n: number, value                    other names of an argument or a local variable
    # .items: values                      other names of an attribute
    # - Return True if {n} is prime.      a wording
    # ? Say whether {n} is prime.         a wording that training never sees
    def is_prime(n: int) -> bool: ...

One or more solutions of the same name follow, each with its helpers above it. The statements behind
the last solution are the checks: they hold for every solution.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CHAPTERS = Path(__file__).with_name("chapters")
TITLE = re.compile(r"# ==(?P<held>!?) (?P<names>.+)")
SYNONYMS = re.compile(r"# (?P<name>\.?\w+): (?P<others>.+)")
WORDING = re.compile(r"# (?P<kind>[-?]) (?P<text>.+)")


@dataclass(frozen=True, slots=True)
class Solution:
    """Source of a function or class of the task's name, with its helpers above it."""

    code: str
    imports: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """One exercise. ``names[0]`` is the name in ``solutions`` and ``checks``.

    ``synonyms`` maps an identifier of the sources to other names that it may take. ``wordings`` say
    what is asked for, ``unseen`` likewise, but only in prompts that measure.
    """

    chapter: str
    names: tuple[str, ...]
    synonyms: tuple[tuple[str, tuple[str, ...]], ...]
    wordings: tuple[str, ...]
    unseen: tuple[str, ...]
    solutions: tuple[Solution, ...]
    checks: tuple[str, ...]
    check_imports: tuple[str, ...]
    held_out: bool

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def is_class(self) -> bool:
        return self.name[0].isupper()


def read_all(folder: Path = CHAPTERS) -> list[Task]:
    """Every task of every chapter; two tasks of one name are an error."""
    tasks = [task for file in sorted(folder.glob("*.py")) for task in read(file)]
    seen: dict[str, Task] = {}
    for task in tasks:
        for name in task.names:
            if name in seen:
                raise ValueError(f"{task.chapter} and {seen[name].chapter} both have {name!r}")
            seen[name] = task
    return tasks


def read(file: Path) -> list[Task]:
    """The tasks of one chapter, in order. Raises ``ValueError`` that names file and task."""
    text = file.read_text(encoding="utf-8")
    sections = re.split(r"^(?=# ==)", text, flags=re.MULTILINE)
    imports = _imports(sections[0])
    tasks = []
    for section in sections[1:]:
        try:
            tasks.append(_task(file.stem, section, imports))
        except (ValueError, SyntaxError) as error:
            raise ValueError(f"{file.name}: {section.splitlines()[0]}: {error}") from error
    return tasks


def _task(chapter: str, section: str, imports: dict[str, str]) -> Task:
    title = TITLE.fullmatch(section.splitlines()[0])
    if title is None:
        raise ValueError("the first line is no title")
    synonyms: list[tuple[str, tuple[str, ...]]] = []
    wordings: dict[str, list[str]] = {"-": [], "?": []}
    for line in section.splitlines()[1:]:
        if not line.startswith("#"):
            break
        if said := WORDING.fullmatch(line):
            wordings[said["kind"]].append(said["text"])
        elif other := SYNONYMS.fullmatch(line):
            synonyms.append((other["name"], tuple(_listed(other["others"]))))
        else:
            raise ValueError(f"{line!r} is no wording and names no synonyms")
    names = tuple(_listed(title["names"]))
    solutions, checks = _split(section, names[0], imports)
    task = Task(
        chapter, names, tuple(synonyms), tuple(wordings["-"]), tuple(wordings["?"]),
        solutions, checks, _used("\n".join(checks), imports), bool(title["held"]),
    )  # fmt: skip
    _complain(task)
    return task


def _complain(task: Task) -> None:
    if not task.solutions or not task.checks:
        raise ValueError("a task needs a solution and checks")
    if not task.unseen or len(task.wordings) < (0 if task.held_out else 3):
        raise ValueError("a task needs three wordings, and one more that training never sees")
    for wording in (*task.wordings, *task.unseen):
        if not wording[0].isupper() or not wording.endswith((".", "?")) or len(wording) > 90:
            raise ValueError(f"the wording {wording!r} is no short sentence")
    if len({*task.wordings, *task.unseen}) < len(task.wordings) + len(task.unseen):
        raise ValueError("a wording stands twice")


def _listed(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(name.isidentifier() for name in names):
        raise ValueError(f"{text!r} is no list of names")
    return names


def _imports(head: str) -> dict[str, str]:
    """The import lines of a chapter by the name that each of them binds."""
    found = {}
    for node in ast.parse(head).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                single = ast.Import([alias])
                if isinstance(node, ast.ImportFrom):
                    single = ast.ImportFrom(node.module, [alias], node.level)  # type: ignore[assignment]
                found[alias.asname or alias.name] = ast.unparse(single)
    return found


def _split(
    section: str, name: str, imports: dict[str, str]
) -> tuple[tuple[Solution, ...], tuple[str, ...]]:
    """Solutions, and the statements behind them."""
    body = ast.parse(section).body
    mine = [at for at, node in enumerate(body) if getattr(node, "name", None) == name]
    if not mine:
        raise ValueError(f"nothing is called {name}")
    solutions, first = [], 0
    for last in mine:
        parts = [ast.get_source_segment(section, node) for node in _whole(body[first : last + 1])]
        code = "\n\n\n".join(part for part in parts if part)
        solutions.append(Solution(code, _used(code, imports)))
        first = last + 1
    checks = [ast.get_source_segment(section, node) or "" for node in body[first:]]
    return tuple(solutions), tuple(checks)


def _whole(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The nodes, beginning at their decorators."""
    for node in nodes:
        decorators = getattr(node, "decorator_list", [])
        if decorators:
            node.lineno, node.col_offset = decorators[0].lineno, 0
        yield node


def _used(code: str, imports: dict[str, str]) -> tuple[str, ...]:
    names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    return tuple(sorted({line for name, line in imports.items() if name in names}))
