"""Rows of a result in a file, written as each of them is there, so that a run may be cut off."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class RowFile:
    """Rows of a result, which are in the file ``path`` as soon as each of them is there."""

    path: Path | None
    options: argparse.Namespace
    machine: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def resume(self) -> list[dict[str, Any]]:
        """The rows that the file has; those that were not measured are dropped."""
        if self.path is None:
            raise ValueError("--resume needs the file of --json")
        if self.path.exists():
            try:
                rows = json.loads(self.path.read_text())["rows"]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{self.path} has no rows to go on from: {error}") from error
            self.rows = [row for row in rows if "ms" in row]
        return list(self.rows)

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if self.path is not None:
            told = {name: str(value) for name, value in vars(self.options).items()}
            taken = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            content = {"options": told, "taken": taken, **self.machine, "rows": self.rows}
            self.path.write_text(json.dumps(content, indent=1) + "\n")
