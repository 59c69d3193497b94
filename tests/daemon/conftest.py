"""Sessions over the toy engine."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wire_scenes import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Callable[..., Scene]:
    """``scene(wire, slots=2, ...)``: a session with the files a.bin, b.bin and long.bin."""

    def make(*arguments: Any, **options: Any) -> Scene:
        made = Scene(tmp_path, *arguments, **options)
        for name, tokens in PROMPTS.items():
            made.file(f"{name}.bin", tokens)
        return made

    return make


PROMPTS = {
    "a": tuple(range(5, 25)),
    "b": tuple(range(1, 12)),
    "long": tuple(number * number % 29 for number in range(300)),
}


@pytest.fixture(scope="session")
def prompts() -> dict[str, tuple[int, ...]]:
    """What is in the files."""
    return PROMPTS


@pytest.fixture(scope="session")
def fuzz_lines() -> int:
    """How many random lines to send."""
    return int(os.environ.get("FUZZ_LINES", "600"))
