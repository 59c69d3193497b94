"""Plays tutorial.md: runs its commands, writes its files, looks for what it shows.

    python docs/tutorial.py FOLDER

A block of `sh` is run line by line, and a block of Python or TOML, whose first line is a comment
with a path, is written there. Every line of a block of `text` must be found, in order, in what the
commands before it printed; `…` stands for anything. Where a check FAILED, the last command must
have said so by its exit code.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

PAGE = Path(__file__).resolve().parent / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)

Run = Callable[[str, Path], tuple[int, str]]
"""(command, folder) -> exit code, and everything that was printed."""


@dataclass(frozen=True)
class Step:
    """`commands` with what they must show, or a file to be written at `path`."""

    kind: Literal["commands", "file"]
    text: str
    path: str = ""
    shows: tuple[str, ...] = ()

    @property
    def fails(self) -> bool:
        return any(line.startswith("FAILED") for line in self.shows)


def steps(page: str) -> Iterator[Step]:
    """What a page says, in order."""
    blocks = BLOCK.findall(page)
    for index, (language, text) in enumerate(blocks):
        after = blocks[index + 1] if index + 1 < len(blocks) else ("", "")
        if language == "sh":
            shows = after[1].splitlines() if after[0] == "text" else []
            yield Step("commands", text, shows=tuple(line for line in shows if line.strip() != "…"))
        elif language in ("python", "toml"):
            first, _, rest = text.partition("\n")
            yield Step("file", rest, path=first.removeprefix("# "))


def play(page: str, folder: Path, run: Run) -> None:
    """Do what a page says in an empty folder. Raises AssertionError where it is wrong."""
    for step in steps(page):
        if step.kind == "file":
            target = folder / step.path
            assert target.parent.is_dir(), f"{step.path}: the folder does not exist"
            target.write_text(step.text, encoding="utf-8")
            continue
        printed = ""
        code = 0
        for command in step.text.replace("\\\n", " ").splitlines():
            assert code == 0, f"before {command!r}: {printed}"
            code, said = run(command, folder)
            printed += said
        assert (code != 0) == step.fails, f"{step.text}ended with {code}:\n{printed}"
        look_for(step.shows, printed, step.text)


def look_for(shows: tuple[str, ...], printed: str, command: str) -> None:
    """Every line in order; `…` stands for anything."""
    rest = [line.strip() for line in printed.splitlines()]
    for line in shows:
        pattern = re.compile(".*".join(map(re.escape, line.strip().split("…"))))
        found = next((i for i, said in enumerate(rest) if pattern.fullmatch(said)), None)
        assert found is not None, f"{command}did not print {line!r}:\n{printed}"
        rest = rest[found + 1 :]


def shell(command: str, folder: Path) -> tuple[int, str]:
    """Run a command as a reader would."""
    done = subprocess.run(
        command, shell=True, cwd=folder, capture_output=True, text=True, timeout=600
    )
    return done.returncode, done.stdout + done.stderr


if __name__ == "__main__":
    if len(sys.argv) != 2 or any(Path(sys.argv[1]).iterdir()):
        raise SystemExit("usage: tutorial.py FOLDER, which must be empty")
    play(PAGE.read_text(encoding="utf-8"), Path(sys.argv[1]), shell)
