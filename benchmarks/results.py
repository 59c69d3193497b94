"""Result files of ``benchmarks/table.py``, and whether the newest one is of the current kernels.

python benchmarks/results.py      print that, and exit with 1 if it is not
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
NEEDED = frozenset({"commit", "kernels", "machine", "versions", "rates", "rows", "taken"})


def kernels_hash(root: Path = ROOT) -> str:
    """A hash of the source files under kernels/."""
    digest = hashlib.sha256()
    files = (path for kind in ("*.py", "*.cu") for path in (root / "kernels").rglob(kind))
    for path in sorted(files):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def newest(folder: Path) -> dict[str, Any] | None:
    """The latest result, ``None`` if there is none. Raises ``ValueError`` for a file that is not a
    result."""
    results = []
    for path in sorted(folder.glob("*.json")):
        result = json.loads(path.read_text())
        missing = NEEDED - result.keys()
        if missing:
            raise ValueError(f"{path} is no result: it lacks {', '.join(sorted(missing))}")
        results.append(result)
    return max(results, key=lambda result: str(result["taken"]), default=None)


def staleness(root: Path = ROOT) -> str:
    """The reason why the newest result is not of the current kernels; empty if it is."""
    result = newest(root / "benchmarks" / "results")
    if result is None:
        return "nothing was measured yet: run .ci/gpu table on a machine with a GPU"
    if result["kernels"] != kernels_hash(root):
        return (
            f"kernels/ has changed since the newest result of {result['taken']} "
            f"(commit {result['commit']}): run .ci/gpu table"
        )
    return ""


if __name__ == "__main__":
    reason = staleness()
    sys.stdout.write(f"{reason or 'the newest result is of these kernels'}\n")
    raise SystemExit(1 if reason else 0)
