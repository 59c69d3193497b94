"""Drafted rows of a delta net and their commit: the time of a layer, and the errors.

    python benchmarks/kernels/delta_drafts.py [--rows N...] [--json FILE]

One sequence with the heads of a 27B and of a 35B mixture. The LAYERS states together are more than
the second-level cache holds. A figure is a layer's part of the median replay of one CUDA graph, in
which layers have launches of their own, but for commits. Half of the rows are kept. Errors are
relative to float64: of outputs, of what the trace holds, and of the state after the commit. The
floor is that of the state's bytes alone, read once or read and written, at the rate of a copy in
the same run.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
import triton
from delta import DIM, KEY_HEADS, SHAPES, Rows, error_of, inputs_of
from timing import copy_bandwidth, replay_seconds

from kinfolk_kernels.commit_layers import by_launch
from kinfolk_kernels.device import shared_memory
from kinfolk_kernels.gated_delta.launches import DeltaInputs, commit, drafts
from kinfolk_kernels.gated_delta.op import (
    DeltaTrace,
    GatedDeltaArguments,
    empty_trace,
    gated_delta,
    gated_delta_commit,
)
from kinfolk_kernels.gated_delta.tiles import chunk_tile
from kinfolk_kernels.row_layout import RowLayout, Segment

LAYERS = 48
ROWS = (1, 2, 4, 8, 16, 24, 32, 64)


class Drafted:
    """A drafted chain of ``rows`` rows in each layer, of which half are kept."""

    def __init__(self, rows: int, heads: int) -> None:
        positions = torch.arange(rows, device="cuda")
        layout = RowLayout.of([Segment(0, 1, 0, rows, 9, True)], positions - 1)
        self.rows = Rows(positions, positions - 1, positions[:0], positions[:0], layout)
        kept = positions[: max(1, rows // 2)][None]
        count, slot = (torch.tensor([n], device="cuda") for n in (kept.shape[1], 1))
        self.kept = (kept, count, slot)
        one = inputs_of(rows, heads)
        self.layers = []
        for _ in range(LAYERS):
            state = torch.randn(2, heads, DIM, DIM, device="cuda")
            self.layers.append(DeltaInputs(one.q, one.k, one.v, one.g, one.beta, state))
        self.out = torch.empty_like(one.v)
        self.traces = [empty_trace(one.k, one.v, one.g) for _ in self.layers]

    def drafts(self) -> None:
        for inputs, trace in zip(self.layers, self.traces, strict=True):
            self.draft(inputs, trace)

    def draft(self, inputs: DeltaInputs, trace: DeltaTrace) -> None:
        tile = chunk_tile(shared_memory(self.out.device))
        for launch in drafts(inputs, self.out, trace, self.rows.layout, tile):
            launch.run()

    def commits(self) -> None:
        states = (inputs.state for inputs in self.layers)
        for layers in by_launch(list(zip(self.traces, states, strict=True))):
            commit(layers, *self.kept).run()

    def errors(self) -> list[float]:
        """Of outputs, of d in the trace, and of the state after a commit, in the first layer."""
        inputs, trace = self.layers[0], self.traces[0]
        heads, device = inputs.v.shape[1], self.out.device
        arguments = GatedDeltaArguments(KEY_HEADS, heads, DIM, DIM, torch.float32, device)
        state, moved = inputs.state.double(), inputs.state.clone()
        operands = (inputs.q, inputs.k, inputs.v, inputs.g, inputs.beta)
        exact, traced = gated_delta(arguments, *(x.double() for x in operands), state, self.rows)
        assert traced is not None
        gated_delta_commit(arguments, [(traced, state)], *self.kept)
        self.draft(inputs, trace)
        commit([(trace, moved)], *self.kept).run()
        return [
            error_of(self.out, exact),
            error_of(trace.d, traced.d),
            error_of(moved[1], state[1]),
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    rate, lines = copy_bandwidth(), []
    for shape, heads in SHAPES.items():
        read = heads * DIM * DIM * 4 / rate
        floors = f"floors {read * 1e6:.1f} and {2 * read * 1e6:.1f} us"
        sys.stdout.write(f"{shape}: {floors} at {rate / 1e12:.2f} TB/s\n")
        for rows in options.rows:
            drafted = Drafted(rows, heads)
            errors = drafted.errors()
            times = [replay_seconds(step) / LAYERS for step in (drafted.drafts, drafted.commits)]
            lines.append({"shape": shape, "rows": rows, "seconds": times, "errors": errors})
            shown = "  ".join(f"{error:.1e}" for error in errors)
            draft_us, commit_us = (f"{x * 1e6:6.2f}" for x in times)
            sys.stdout.write(
                f"{shape} {rows:3} rows  drafted {draft_us} us  commit {commit_us} us  "
                f"errors {shown}\n"
            )
            sys.stdout.flush()
    if options.json:
        measured = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "copy": rate,
            "lines": lines,
        }
        options.json.write_text(json.dumps(measured, indent=1))


if __name__ == "__main__":
    main()
