"""The criterion by which a sampled completion of a Python prompt passes.

A completion passes if the text, cut behind its last complete statement, parses; if the cut text has
at least three complete statements more than the prompt; and if no sequence of eight tokens occurs
more than three times in the completion.

Only an unfinished end is cut off; a syntax error is never cut off. A docstring does not count as a
statement, so that a long docstring cannot replace code.
"""

from __future__ import annotations

import ast
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

MIN_STATEMENTS = 3
GRAM = 8
MAX_REPEATS = 3
# CPython's flag for interactive input (see codeop): its errors tell unfinished from wrong text.
ALLOW_INCOMPLETE_INPUT = 0x4000


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of the criterion.

    ``parses``: the cut text parses. ``statements``: its new complete statements. ``repeats``: how
    often the most frequent sequence of eight tokens occurs.
    """

    parses: bool
    statements: int
    repeats: int

    @property
    def passed(self) -> bool:
        enough = self.statements >= MIN_STATEMENTS
        return self.parses and enough and self.repeats <= MAX_REPEATS


def judge(prompt: str, completion: str, tokens: Sequence[int], ended: bool) -> Verdict:
    """Judge one completion.

    ``tokens`` are the ids of the completion; ``ended`` says that the model ended the text itself:
    then its last line is complete even without a newline.
    """
    text = cut(prompt + completion, ended)
    repeats = worst_repeat(tokens)
    if text is None:
        return Verdict(False, 0, repeats)
    return Verdict(True, new_statements(text, prompt), repeats)


def cut(text: str, ended: bool) -> str | None:
    """``text`` up to the end of its last complete statement; None if it has a syntax error."""
    lines = text.splitlines(keepends=True)
    if not ended and lines and not lines[-1].endswith("\n"):
        lines.pop()
    while lines:
        candidate = "".join(lines)
        problem = syntax_problem(candidate)
        if problem is None:
            return candidate
        if not problem.unfinished:
            return None
        lines.pop()
    return ""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a text does not compile: it is ``unfinished``, or it has a syntax error."""

    unfinished: bool


def syntax_problem(text: str) -> Problem | None:
    """The reason why ``text`` does not compile; None if it does."""
    flags = ast.PyCF_ONLY_AST | ALLOW_INCOMPLETE_INPUT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text, "<completion>", "exec", flags, dont_inherit=True)
        except SyntaxError as error:
            return Problem("incomplete input" in str(error.msg))
        except (ValueError, RecursionError, MemoryError):
            return Problem(False)
    return None


def new_statements(text: str, prompt: str) -> int:
    """Statements of ``text`` that begin after the end of ``prompt``, docstrings left out."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    after = _position(prompt)
    found = (node for node in ast.walk(tree) if isinstance(node, ast.stmt))
    return sum(1 for node in found if _begin(node) >= after and not _is_docstring(node))


def worst_repeat(tokens: Sequence[int]) -> int:
    """How often the most frequent sequence of eight tokens occurs, overlaps included."""
    grams = Counter(tuple(tokens[i : i + GRAM]) for i in range(len(tokens) - GRAM + 1))
    return max(grams.values(), default=0)


def _position(prompt: str) -> tuple[int, int]:
    """Line (from 1) and column in UTF-8 bytes of the end of ``prompt``, as ast counts them."""
    lines = prompt.split("\n")
    return len(lines), len(lines[-1].encode())


def _begin(node: ast.stmt) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _is_docstring(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return isinstance(node.value.value, str)
