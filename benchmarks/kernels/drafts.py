"""Trees of drafts, and the rows that they become: the time of one launch.

    python benchmarks/kernels/drafts.py [--json FILE]

Trees of depth 7 and 15 with 4 to 63 candidates a depth, best-first and chain-seeded, for 1, 4 and
16 sequences, and the placement of as many sequences of 8 to 64 rows. One CUDA graph holds LAUNCHES
of them, and a figure is a part of its median replay. Neither moves enough bytes for a floor: both
are chains of dependent instructions in one warp, so the lines tell how long a node takes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
import triton
from timing import replay_seconds

from kinfolk_kernels.draft_trees.op import DraftTreesArguments
from kinfolk_kernels.draft_trees.triton_backend import build
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.place_drafts.op import DraftedRows, PlaceDraftsArguments, StoredDrafts
from kinfolk_kernels.place_drafts.triton_backend import place

LAUNCHES = 50
TREES = ((7, 4, 8), (15, 8, 22), (15, 22, 22), (15, 8, 63), (15, 63, 63))
"""Depths, candidates, nodes."""

SEQUENCES = (1, 4, 16)
VOCABULARY = 248320
DEVICE = torch.device("cuda")


def tree_launch(depths: int, ranks: int, nodes: int, sequences: int, chain_seeded: bool) -> Launch:
    logits = 3 * torch.randn(sequences, depths, VOCABULARY // 16, device=DEVICE)
    scores, tokens = logits.log_softmax(2).topk(ranks, 2)
    budget = torch.full((sequences,), nodes, device=DEVICE)
    trees, parents = (budget.new_empty(sequences, nodes) for _ in range(2))
    arguments = DraftTreesArguments(nodes, chain_seeded, DEVICE)
    return build(arguments, tokens, scores, budget, trees, parents, torch.empty_like(budget))


def place_launch(nodes: int, sequences: int) -> Launch:
    rows = nodes + 1
    every = torch.arange(sequences, device=DEVICE)
    tokens = torch.randint(0, VOCABULARY, (sequences, nodes), device=DEVICE)
    row = torch.arange(nodes, device=DEVICE)
    parents = (torch.rand(sequences, nodes, device=DEVICE) * (row + 1)).long()
    stored = StoredDrafts(every, tokens, parents, torch.full_like(every, nodes))
    spans = torch.stack((every * rows, every * 0 + rows, every, every * 0 + 1), 1).int()
    tables = (torch.zeros(sequences * rows, dtype=torch.int64, device=DEVICE) for _ in range(7))
    arguments = PlaceDraftsArguments(VOCABULARY, DEVICE)
    return place(arguments, stored, spans, every + 1000, every * 64, DraftedRows(*tables))


def seconds_of(launch: Launch) -> float:
    def step() -> None:
        for _ in range(LAUNCHES):
            launch.run()

    return replay_seconds(step) / LAUNCHES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    lines: list[dict[str, object]] = []

    def add(what: str, sequences: int, launch: Launch) -> None:
        seconds = seconds_of(launch)
        lines.append({"what": what, "sequences": sequences, "seconds": seconds})
        sys.stdout.write(f"{what:44} {sequences:3} sequences {seconds * 1e6:7.2f} us\n")
        sys.stdout.flush()

    for sequences in SEQUENCES:
        for depths, ranks, nodes in TREES:
            for chain_seeded in (False, True):
                name = f"{nodes} nodes of {depths} x {ranks}"
                name += ", chain-seeded" if chain_seeded else ""
                add(name, sequences, tree_launch(depths, ranks, nodes, sequences, chain_seeded))
        for nodes in (7, 22, 63):
            add(f"{nodes + 1} rows placed", sequences, place_launch(nodes, sequences))
    if options.json:
        measured = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "lines": lines,
        }
        options.json.write_text(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
