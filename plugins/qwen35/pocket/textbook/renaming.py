"""Other names for the identifiers of a piece of source, which otherwise stays as it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping


def rename(code: str, names: Mapping[str, str]) -> str:
    """``code`` with identifiers replaced. A key ``.name`` is an attribute, ``name`` anything else.

    Strings are left alone, but for what stands in the braces of an f-string.
    """
    plain = {old: new for old, new in names.items() if not old.startswith(".")}
    dotted = {old[1:]: new for old, new in names.items() if old.startswith(".")}
    return "".join(
        _literal(part, plain, dotted) if part[-1:] in "'\"" else _replace(part, plain, dotted)
        for part in _parts(code)
    )


LITERAL = re.compile(
    r"""([fFrRbB]{0,2}(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''"""
    r"""|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|\#[^\n]*\n?)""",
    re.DOTALL,
)
NAME = re.compile(r"(?P<dot>\.\s*)?(?<![\w])(?P<name>[^\W\d]\w*)")


def identifiers(code: str) -> set[str]:
    """Every name in a piece of source: variables, arguments, attributes, keywords of calls."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        for field in ("id", "arg", "attr", "name"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                found.add(value)
    return found


def _parts(code: str) -> list[str]:
    """Source cut at its string literals and comments, which are parts of their own."""
    return [part for part in LITERAL.split(code) if part]


def _replace(code: str, plain: Mapping[str, str], dotted: Mapping[str, str]) -> str:
    if code.startswith("#"):
        return code
    return NAME.sub(lambda m: _name(m, plain, dotted), code)


def _name(match: re.Match[str], plain: Mapping[str, str], dotted: Mapping[str, str]) -> str:
    dot, name = match["dot"] or "", match["name"]
    return dot + (dotted if dot else plain).get(name, name)


def _literal(literal: str, plain: Mapping[str, str], dotted: Mapping[str, str]) -> str:
    prefix = literal[: len(literal) - len(literal.lstrip("fFrRbB"))]
    if "f" not in prefix.lower():
        return literal
    # Behind a colon or an exclamation mark stands how to print, not what.
    return re.sub(r"(?<!\{)\{([^{}:!]+)", lambda m: "{" + _replace(m[1], plain, dotted), literal)
