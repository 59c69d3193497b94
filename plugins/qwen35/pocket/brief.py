"""Second versions of training files, with docstrings of one line.

Installed code has longer docstrings than most prompts ask for: prose is half of some files. So the
model also learns a second version of some files, in which the code follows at once.
"""

from __future__ import annotations

import ast
from dataclasses import replace

from pocket.corpus import Source, parse, top_level_starts

WORTHWHILE = 0.9


def brief(source: Source) -> Source | None:
    """The file with every long docstring cut to its first line.

    None if the text stays longer than ``WORTHWHILE`` times the original, or does not parse.
    """
    tree = parse(source.text)
    if tree is None:
        return None
    lines = source.text.splitlines(keepends=True)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            _shorten(node, lines)
    text = "".join(lines)
    changed = parse(text) if len(text) < WORTHWHILE * len(source.text) else None
    if changed is None:
        return None
    return replace(source, text=text, starts=top_level_starts(text, changed))


def _shorten(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, lines: list[str]) -> None:
    """Replace the lines of a docstring in place; all other lines keep their line numbers."""
    docstring = ast.get_docstring(node)
    first = node.body[0]
    if not docstring or first.end_lineno is None or first.end_lineno == first.lineno:
        return
    summary = docstring.splitlines()[0].strip()
    head, tail = lines[first.lineno - 1], lines[first.end_lineno - 1]
    whole = not head[: first.col_offset].strip() and tail.rstrip().endswith(('"""', "'''"))
    if not whole or not summary[:1].isupper() or any(mark in summary for mark in "\\\"'"):
        return
    short = f'{head[: first.col_offset]}"""{summary}"""\n'
    lines[first.lineno - 1 : first.end_lineno] = [short] + [""] * (first.end_lineno - first.lineno)
