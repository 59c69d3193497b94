"""Mutated real files are opened or refused: no hang, no crash, no memory beyond the file's size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).with_name("fuzz_open.py")
COUNT = 400


def test_mutated_files_are_opened_or_refused_in_bounded_memory(case_path, tmp_path):
    command = [sys.executable, PROGRAM, case_path, "1", str(COUNT), tmp_path / "mutant.gguf"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads(result.stdout)
    assert found["opened"] + found["refused"] == COUNT
    assert found["refused"] > COUNT // 4
    assert found["grown"] <= 4 * case_path.stat().st_size + 64 * 2**20
