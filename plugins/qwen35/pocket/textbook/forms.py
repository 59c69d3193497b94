"""One task in one form: names, types, documentation, quotes and what stands around it are chosen.

A document is a whole small file. It ends where a unit ends: behind the solution, or behind a few
lines that use or test it.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from pocket.textbook.renaming import LITERAL, identifiers, rename
from pocket.textbook.tasks import Solution, Task

INDENT = "    "
TOGETHER = 0.7

Documentation = Literal["none", "docstring", "example", "comment", "module"]
Tail = Literal["none", "asserts", "test", "main"]


@dataclass(frozen=True, slots=True)
class Style:
    """What a form looks like, apart from its names."""

    typed: bool
    documentation: Documentation
    tail: Tail
    single_quotes: bool

    @classmethod
    def draw(cls, random: Random) -> Style:
        documentation: list[Documentation] = ["none", "docstring", "example", "comment", "module"]
        tail: list[Tail] = ["none", "asserts", "test", "main"]
        return cls(
            typed=random.random() < 0.45,
            documentation=random.choices(documentation, (30, 44, 8, 12, 6))[0],
            tail=random.choices(tail, (64, 14, 11, 11))[0],
            single_quotes=random.random() < 0.1,
        )


@dataclass(frozen=True, slots=True)
class Named:
    """A solution under chosen names, with checks that use them. ``name`` is the main one's.

    ``imports`` are lines that solution and checks may need.
    """

    name: str
    code: str
    imports: tuple[str, ...]
    checks: tuple[str, ...]
    wording: str

    def test(self) -> str:
        """A program that, behind the solution, passes if the solution is right."""
        checks = "\n".join(self.checks)
        return "\n".join(filter(None, (import_lines(checks, self.imports), checks)))


@dataclass(frozen=True, slots=True)
class Document:
    """``text`` is what is learned; ``program`` is ``text`` and the checks that it has to pass."""

    text: str
    program: str


def draw_names(task: Task, solution: Solution, wording: str, random: Random) -> Named:
    """``solution`` under names drawn from the task's; none of them hides another."""
    chosen: dict[str, str] = {}
    taken = identifiers(solution.code)
    # Synonyms at one place of their lists belong together: previous and current, first and second.
    at = random.randrange(8) if random.random() < TOGETHER else None
    for old, others in task.synonyms:
        names = (old.removeprefix("."), *others)
        new = random.choice(names) if at is None else names[at % len(names)]
        if new not in taken and new not in chosen.values():
            chosen[old] = new
    name = random.choice((task.name, task.name, *task.names))
    outside = {task.name: name, **{k: v for k, v in chosen.items() if k.startswith(".")}}
    # A method of an inner name, or a helper, must not be hidden by the name of the task either.
    if name in taken:
        name, outside[task.name] = task.name, task.name
    shown = {old: new for old, new in chosen.items() if not old.startswith(".")}
    return Named(
        name,
        rename(solution.code, {**chosen, task.name: name}),
        (*solution.imports, *task.check_imports),
        tuple(rename(check, outside) for check in task.checks),
        _fill(wording, shown),
    )


def write(task: Task, random: Random) -> Document:
    """A document of its own with one solution of a task."""
    named = draw_names(task, random.choice(task.solutions), random.choice(task.wordings), random)
    style = Style.draw(random)
    unit, tail = write_unit(named, style), write_tail(named, style, random)
    lines = import_lines(f"{unit}\n{tail}", named.imports)
    if style.documentation == "module":
        lines = f'"""{named.wording}"""\n' + (f"\n{lines}" if lines else "")
    # A check that makes files or counts calls must not run twice.
    checked = tail != "" and all(line.strip() in tail for line in _lines(named.checks))
    return _document(_joined([lines, unit, tail]), "" if checked else named.test(), style)


def write_several(tasks: list[Task], title: str, random: Random) -> Document:
    """A module of several solutions under one title."""
    style = replace(Style.draw(random), tail="none")
    if style.documentation in ("module", "example"):
        style = replace(style, documentation="docstring")
    units, imports, tests = [], set[str](), []
    for task in tasks:
        wording = random.choice(task.wordings)
        named = draw_names(task, random.choice(task.solutions), wording, random)
        units.append(write_unit(named, style))
        imports.update(named.imports)
        tests.append(named.test())
    lines = import_lines("\n".join(units), tuple(imports))
    head = f'"""{title}"""\n' + (f"\n{lines}" if lines else "")
    return _document(_joined([head, *units]), "\n".join(tests), style)


def _document(text: str, test: str, style: Style) -> Document:
    if style.single_quotes:
        text = _single_quoted(text)
    called = re.findall(r"^def (test_\w+)\(\):", text, flags=re.MULTILINE)
    return Document(text, "\n".join([text, *(f"{name}()" for name in called), test]) + "\n")


def _lines(parts: tuple[str, ...]) -> list[str]:
    return "\n".join(parts).splitlines()


def write_unit(named: Named, style: Style) -> str:
    """The solution with its types and documentation, without what stands around it."""
    code = named.code if style.typed else without_types(named.code)
    if style.documentation == "comment":
        return f"# {named.wording}\n{code}"
    if style.documentation in ("none", "module"):
        return code
    examples: tuple[str, ...] = ()
    if style.documentation == "example" and _independent(named.checks):
        examples = tuple(filter(None, map(_example, named.checks)))[:2]
    return with_docstring(code, named.name, named.wording, examples)


def write_tail(named: Named, style: Style, random: Random) -> str:
    """Lines behind a solution that use it."""
    if style.tail == "none" or named.name.lower().startswith("test"):
        return ""
    if style.tail == "asserts":
        return "\n".join(named.checks)
    body = list(named.checks)
    head = f"def test_{_snake(named.name)}():"
    if style.tail == "main":
        head = 'if __name__ == "__main__":'
        calls = [call for call in map(_call, named.checks) if call and _independent(named.checks)]
        body = [f"print({call})" for call in calls[: random.randint(1, 3)]] or body
    return head + "\n" + _indented("\n".join(body))


def signature(code: str, name: str) -> str:
    """The text of ``code`` up to the colon of the function or class called ``name``."""
    node = _named(code, name)
    lines = code.splitlines()
    return "\n".join(lines[: _first_line(node.body[0]) - 1])


def without_types(code: str) -> str:
    """``code`` without the annotations of functions; those of classes' fields stay."""
    lines = code.splitlines()
    tree = ast.parse(code)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for function in sorted(functions, key=lambda node: -node.lineno):
        for inner in ast.walk(function):
            if isinstance(inner, ast.AnnAssign) and inner.value is not None:
                line = lines[inner.lineno - 1]
                end = inner.annotation.end_col_offset
                if inner.annotation.end_lineno == inner.lineno:
                    lines[inner.lineno - 1] = line[: inner.target.end_col_offset] + line[end:]
        arguments = function.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            argument.annotation = None
        for star in (arguments.vararg, arguments.kwarg):
            if star is not None:
                star.annotation = None
        begin, end = function.lineno, _first_line(function.body[0])
        head = f"def {function.name}({ast.unparse(arguments)}):"
        lines[begin - 1 : end - 1] = [" " * function.col_offset + head]
    return "\n".join(lines)


def with_docstring(code: str, name: str, wording: str, examples: tuple[str, ...] = ()) -> str:
    """``code`` with a docstring in the function or class called ``name``."""
    node = _named(code, name)
    inside = " " * node.col_offset + INDENT
    text = [f'{inside}"""{wording}"""']
    if examples:
        shown = [inside + line for example in examples for line in example.splitlines()]
        text = [f'{inside}"""{wording}', "", *shown, f'{inside}"""']
    if isinstance(node, ast.ClassDef):
        text.append("")
    lines = code.splitlines()
    at = _first_line(node.body[0]) - 1
    return "\n".join([*lines[:at], *text, *lines[at:]])


def _named(code: str, name: str) -> ast.FunctionDef | ast.ClassDef:
    found = [
        node
        for node in ast.parse(code).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
    ]
    return found[-1]


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _independent(checks: tuple[str, ...]) -> bool:
    """Whether each check can stand alone, because nothing is set up for it."""
    return all(isinstance(ast.parse(check).body[0], ast.Assert) for check in checks)


def _example(check: str) -> str | None:
    """``assert f(x) == y`` as lines of a session; None for anything else.

    A backslash would mean something else in a docstring.
    """
    if "\\" in check:
        return None
    match ast.parse(check).body[0]:
        case ast.Assert(ast.Compare(ast.Call() as call, [ast.Eq()], [value])):
            try:
                shown = repr(ast.literal_eval(value))
            except ValueError:
                return None
            return f">>> {ast.unparse(call)}\n{shown}"
    return None


def _call(check: str) -> str | None:
    """The call that a check is about, if it is about one."""
    match ast.parse(check).body[0]:
        case ast.Assert(ast.Compare(ast.Call() as call)) | ast.Assert(ast.Call() as call):
            return ast.get_source_segment(check, call)
    return None


def _fill(wording: str, names: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: names.get(match[1], match[1]), wording)


def import_lines(code: str, lines: tuple[str, ...]) -> str:
    """The import lines whose names ``code`` still uses."""
    used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    kept = {line for line in lines if line.split()[-1] in used}
    return "\n".join(sorted(kept, key=lambda line: (line.startswith("from"), line)))


def _joined(parts: list[str]) -> str:
    return "\n\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def _indented(text: str) -> str:
    return "\n".join(INDENT + line if line else line for line in text.splitlines())


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _single_quoted(code: str) -> str:
    return LITERAL.sub(lambda match: _requoted(match[0]), code)


def _requoted(literal: str) -> str:
    inner = literal.lstrip("fFrRbB")
    if not inner.startswith('"') or inner.startswith('"""') or "'" in inner or "\\" in inner:
        return literal
    if '"' in inner[1:-1]:
        return literal
    return literal[: len(literal) - len(inner)] + f"'{inner[1:-1]}'"
