"""How values of settings are written: each function turns text into a value, or says what is wrong.

They are validators of :class:`kinfolk.settings.Settings` and raise :class:`ValueError`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

DRAFT_WORDS: Final = ("auto", "off")
"""Values of ``--draft`` that are no names of drafters."""


MOST_GIB: Final = 2.0**40
"""Of memory or disks."""


def home_expanded(path: Path) -> Path:
    """``~`` as the home directory: shells leave it alone in ``--flag=~/file``. That of an unknown
    user stays as it is, and is no file."""
    return Path(os.path.expanduser(path))


def not_blank(value: object) -> object:
    if isinstance(value, str) and not value.strip():
        raise ValueError("must be a path, and is empty")
    return value


def split_names(value: object) -> object:
    """``"a, b"`` -> ``("a", "b")``; the empty string is the empty tuple."""
    if not isinstance(value, str):
        return value
    if not value.strip():
        return ()
    return tuple(part.strip() for part in value.split(","))


def distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    if "" in names:
        raise ValueError("has an empty name; write names separated by single commas")
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ValueError(f"names {name!r} twice")
    return names


def overrides(value: object) -> object:
    """``"rope=torch,rms_norm=reference"`` or a sequence of ``NAME=OPTION`` -> a mapping."""
    parts = split_names(value)
    if not isinstance(parts, tuple | list):
        return value
    pairs: dict[str, str] = {}
    for part in parts:
        name, equals, option = str(part).partition("=")
        if not (name.strip() and equals and option.strip()):
            raise ValueError(f"{part!r} is not of the form NAME=OPTION")
        if name.strip() in pairs:
            raise ValueError(f"names {name.strip()!r} twice")
        pairs[name.strip()] = option.strip()
    return pairs


def one_word_alone(names: tuple[str, ...]) -> tuple[str, ...]:
    word = next((name for name in names if name in DRAFT_WORDS), None)
    if not names or (word is not None and len(names) > 1):
        raise ValueError("must be auto, off, or names of drafters, separated by commas")
    return names


def blank_is_unset(value: object) -> object:
    return None if isinstance(value, str) and not value.strip() else value


def device_name(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"auto|cpu|cuda(:\d+)?", value):
        raise ValueError("must be auto, cpu, cuda, or cuda:N for the GPU of number N")
    return value


def budget_of_experts(value: object) -> object:
    """GiB as a number, or a word or part of all experts as text."""
    text = str(value).strip()
    if text in ("auto", "all"):
        return text
    number, percent = text.removesuffix("%"), text.endswith("%")
    try:
        amount = float(number)
    except ValueError:
        amount = -1.0
    if not 0 <= amount <= (100 if percent else float("1e6")):
        raise ValueError("must be auto, all, GiB as a number from 0 on, or N% of all experts")
    return f"{amount:g}%" if percent else amount


def tokens_or_word(value: object) -> object:
    if value in ("off", "auto"):
        return value
    try:
        tokens = int(str(value))
    except ValueError:
        tokens = 0
    if tokens < 1:
        raise ValueError("must be a number of tokens, auto or off")
    return tokens
