"""The benchmark of the host's part of paging, with small numbers: every piece is timed, and the
books agree afterwards."""

from __future__ import annotations

import subprocess
import sys

PIECES = (
    *("asking", "scoring", "choosing", "loading", "moving", "leaving"),
    *("loading done", "moving done", "leaving done"),
)


def test_every_piece_of_a_choice_and_of_an_eviction_takes_its_time(repo):
    script = str(repo / "benchmarks/paging_host.py")
    small = ["--context", "4096", "--budget", "1024", "--burst", "4", "--rounds", "2"]
    done = subprocess.run(
        [sys.executable, script, *small, "--cold", "1"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    times = {line[:16].strip(): line[16:].split() for line in done.stdout.splitlines()[1:]}
    for piece in PIECES:
        hot, cold, coldest = map(int, times[piece])
        assert min(hot, cold, coldest) > 0, f"{piece}: {times[piece]}"
