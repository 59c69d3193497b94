"""The licence gate: decides which installed distributions the model may learn from.

The metadata of a distribution decides, in this order: its SPDX expression (PEP 639), its licence
classifiers, its free ``License`` field. Every licence that applies must be permissive; where an
expression offers a choice (OR), one permissive branch is enough. A distribution that states no
licence is not admitted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import Distribution
from typing import Any

PERMISSIVE = frozenset(
    {
        "0bsd",
        "apache-2.0",
        "apache-2.0 with llvm-exception",
        "blueoak-1.0.0",
        "bsd-1-clause",
        "bsd-2-clause",
        "bsd-3-clause",
        "bsd-3-clause-open-mpi",
        "bsl-1.0",
        "cc0-1.0",
        "cnri-python",
        "hpnd",
        "isc",
        "mit",
        "mit-0",
        "mit-cmu",
        "ncsa",
        "psf-2.0",
        "python-2.0",
        "unicode-3.0",
        "unicode-dfs-2016",
        "unlicense",
        "wtfpl",
        "zlib",
    }
)

CLASSIFIERS = frozenset(
    {
        "Apache Software License",
        "BSD License",
        "CC0 1.0 Universal (CC0 1.0) Public Domain Dedication",
        "Historical Permission Notice and Disclaimer (HPND)",
        "ISC License (ISCL)",
        "MIT License",
        "MIT No Attribution License (MIT-0)",
        "Python Software Foundation License",
        "The Unlicense (Unlicense)",
        "Zope Public License",
        "zlib/libpng License",
    }
)

# Common texts of the free field, in lower case and without punctuation.
FREE_FIELD = frozenset(
    {
        "apache",
        "apache 2",
        "apache 20",
        "apache 20 license",
        "apache license",
        "apache license 20",
        "apache license version 20",
        "apache software license",
        "apache software license 20",
        "apache-20",
        "3-clause bsd license",
        "asl 20",
        "bsd",
        "bsd 2-clause",
        "bsd 3-clause",
        "bsd 3-clause license",
        "bsd license",
        "bsd-2-clause",
        "bsd-3-clause",
        "isc",
        "isc license",
        "mit",
        "mit license",
        "mit or apache-20",
        "new bsd",
        "new bsd license",
        "psf",
        "psf license",
        "psf-20",
        "python-20",
        "the mit license",
        "the mit license mit",
        "zlib",
    }
)

# Folders with files of other projects, which the distribution's metadata does not cover.
FOREIGN_FOLDERS = frozenset(
    {"_vendor", "vendor", "vendored", "_vendored", "third_party", "extern", "externals"}
)


@dataclass(frozen=True, slots=True)
class Admission:
    """The gate's answer for a distribution; ``evidence`` is the metadata text that decided."""

    name: str
    version: str
    admitted: bool
    evidence: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def admit(distribution: Distribution) -> Admission:
    """Decide on an installed distribution from its metadata."""
    metadata = distribution.metadata
    classifiers = [str(c) for c in metadata.get_all("Classifier") or []]
    expression, free = metadata.get_all("License-Expression"), metadata.get_all("License")
    admitted, evidence = judge(_text(expression), classifiers, _text(free))
    return Admission(str(metadata["Name"]), distribution.version, admitted, evidence)


def judge(expression: str, classifiers: Iterable[str], free: str) -> tuple[bool, str]:
    """Whether these three metadata fields admit a distribution, and the text that decided."""
    if expression:
        return permissive_expression(expression), expression
    names = [c.split(" :: ")[-1] for c in classifiers if c.startswith("License ::")]
    names = [name for name in names if name not in ("OSI Approved", "DFSG approved")]
    if names:
        return all(name in CLASSIFIERS for name in names), " and ".join(sorted(names))
    first = free.strip().splitlines()[0] if free.strip() else ""
    words = re.sub(r"[^a-z0-9 -]", "", first.lower()).strip()
    admitted = words in FREE_FIELD or permissive_expression(first)
    return admitted, first or "no licence stated"


def permissive_expression(expression: str) -> bool:
    """Whether an SPDX expression is permissive; a malformed expression is not.

    AND needs two permissive sides, OR one.
    """
    tokens = re.findall(r"\(|\)|[^\s()]+", expression)
    try:
        value, rest = _either(tokens)
    except (IndexError, ValueError):
        return False
    return value and not rest


def _either(tokens: list[str]) -> tuple[bool, list[str]]:
    value, tokens = _both(tokens)
    while tokens and tokens[0].upper() == "OR":
        right, tokens = _both(tokens[1:])
        value = value or right
    return value, tokens


def _both(tokens: list[str]) -> tuple[bool, list[str]]:
    value, tokens = _term(tokens)
    while tokens and tokens[0].upper() == "AND":
        right, tokens = _term(tokens[1:])
        value = value and right
    return value, tokens


def _term(tokens: list[str]) -> tuple[bool, list[str]]:
    head, rest = tokens[0], tokens[1:]
    if head == "(":
        value, rest = _either(rest)
        if not rest or rest[0] != ")":
            raise ValueError("an opening parenthesis without its closing one")
        return value, rest[1:]
    if head == ")" or head.upper() in ("AND", "OR", "WITH"):
        raise ValueError("a licence was expected")
    name = head.lower()
    if rest and rest[0].upper() == "WITH":
        return f"{name} with {rest[1].lower()}" in PERMISSIVE, rest[2:]
    return name in PERMISSIVE, rest


def foreign(path: str) -> bool:
    """Whether a path lies in a folder with files of other projects."""
    return any(part in FOREIGN_FOLDERS for part in path.split("/"))


def _text(values: Iterable[object] | None) -> str:
    """The first value of a field; empty where it is absent or says that it is unknown."""
    text = next((str(value) for value in values or ()), "")
    return "" if text.strip().upper() == "UNKNOWN" else text
