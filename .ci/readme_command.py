"""Print a command of the README, so that CI runs what a newcomer is told to type.

python .ci/readme_command.py test      the line that installs and tests
python .ci/readme_command.py answer    the line that installs and answers
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
LAST_WORD = {"test": r"&& pytest$", "answer": r'&& kinfolk run ".*"$'}


def commands(text: str) -> list[str]:
    """The lines of all fenced shell blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines() if line.strip()]


def command(name: str) -> str:
    """The one command that ends as the name says."""
    found = {line for line in commands(README.read_text()) if re.search(LAST_WORD[name], line)}
    if len(found) != 1:
        raise SystemExit(f"README.md has {len(found)} commands for '{name}', expected one")
    return found.pop()


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in LAST_WORD:
        raise SystemExit(f"usage: readme_command.py {'|'.join(LAST_WORD)}")
    sys.stdout.write(command(sys.argv[1]) + "\n")
