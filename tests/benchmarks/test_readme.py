"""The README's table of speed shows the newest figure of each row."""

from __future__ import annotations

import json
import re


def test_the_readmes_speeds_are_the_newest_results(repo):
    newest = {}
    for path in sorted((repo / "benchmarks/results").glob("*.json")):
        for row in json.loads(path.read_text())["rows"]:
            newest[row["shape"], row["case"]] = row
    page = (repo / "README.md").read_text()
    (table,) = re.findall(r"^\| shape \| case \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    for line in table.splitlines():
        shape, case, shown, _ = (cell.strip() for cell in line.strip("|").split(" | "))
        kind = "prompt" if case.startswith("prompt") else "generate"
        measured = newest[shape, case][f"{kind}_tokens_per_second"]
        decimals = len(shown.partition(".")[2])
        assert f"{measured:.{decimals}f}" == shown, line
