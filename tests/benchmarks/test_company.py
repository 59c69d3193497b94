"""What a request costs the streams beside it, with small numbers."""

from __future__ import annotations

import json
import subprocess
import sys


def test_every_kind_of_company_is_measured(repo, tmp_path):
    script, file = str(repo / "benchmarks/company.py"), tmp_path / "company.json"
    small = ["--streams", "3", "--tokens", "12", "--prompt", "40", "--pairs", "1"]
    done = subprocess.run(
        [sys.executable, script, *small, "--device", "cpu", "--json", str(file)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())
    assert json.loads(done.stdout) == figures
    assert figures["streams"] == 3
    assert figures["plain"]["share"] == 1
    for kind in ("plain", "logprobs", "prompt"):
        found = figures[kind]
        assert found["rate"] > 0, kind
        assert 0 < found["gap"][0] <= found["gap"][1], kind
    assert figures["prompt"]["first"][0] > 0


def test_one_stream_alone_has_no_company(repo):
    script = str(repo / "benchmarks/company.py")
    done = subprocess.run(
        [sys.executable, script, "--streams", "1"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "--streams: two or more" in done.stderr
