"""Dequantising the matrices of a dense 27B: time against the bandwidth of a copy.

    PYTHONPATH=kernels python benchmarks/kernels/dequantize.py [--json FILE]

Products of many rows dequantise a slice of matrices before each product. One CUDA graph runs each
launch of a step over enough copies of its matrices to exceed the cache, with the program's size in
use and with others. Bytes are those of the planes, read, and of bfloat16 numbers, written. The last
line adds up the step.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
from matrices import LAUNCHES, launch_of, step
from timing import copy_bandwidth, replay_seconds

from kinfolk_kernels.linear import dequantize as module
from kinfolk_kernels.planes import Planes

CACHE = 250e6
"""Bytes of the copies that a launch alternates over: several times the second-level cache."""

USED = (module.GROUPS, module.PROGRAM_WORDS, 4)
SIZES = (USED, (2, 64, 4), (8, 64, 4), (4, 128, 4), (2, 128, 4), (4, 64, 2), (8, 64, 8))
"""Groups of four rows of a program, words of each, and warps."""

say = sys.stdout.write


def nbytes(matrices: Sequence[Planes]) -> int:
    """Bytes that a launch reads and writes."""
    return sum(sum(plane.nbytes for plane in m.tensors) + 2 * m.rows * m.columns for m in matrices)


def seconds(copies: Sequence[Sequence[Planes]], size: tuple[int, int, int]) -> float:
    """Seconds of a launch with programs of this size."""
    groups, words, warps = size
    launches = []
    with patch.multiple(module, GROUPS=groups, PROGRAM_WORDS=words):
        for matrices in copies:
            outs = [
                torch.empty(m.rows, m.columns, dtype=torch.bfloat16, device="cuda")
                for m in matrices
            ]
            launches.append(replace(module.dequantize(matrices, outs), warps=warps))

    def run() -> None:
        for each in launches:
            each.run()

    return replay_seconds(run) / len(launches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    arguments = parser.parse_args()
    copied = copy_bandwidth()
    say(f"{torch.cuda.get_device_name()}, a copy reads and writes {copied / 1e12:.2f} TB/s\n")
    rows, total, floor = [], Counter[tuple[int, int, int]](), 0.0
    counts = Counter(name for name in step() if name != "head")
    for name in LAUNCHES:
        if name == "head":
            continue  # few rows of a prompt need its logits
        one = launch_of(name)
        moved = nbytes(one)
        copies = [one, *(launch_of(name) for _ in range(int(CACHE // moved)))]
        floor += counts[name] * moved / copied
        figures = {}
        for size in SIZES:
            figures[size] = seconds(copies, size)
            total[size] += counts[name] * figures[size]
        rates = {size: moved / each / copied for size, each in figures.items()}
        say(f"{name:14}" + "".join(f"  {size}: {rates[size]:.2f}" for size in SIZES) + "\n")
        for size in SIZES:
            row = {"launch": name, "size": size, "us": figures[size] * 1e6, "of copy": rates[size]}
            rows.append(row)
        if arguments.json:
            arguments.json.write_text(json.dumps({"copy": copied, "rows": rows}))
    say(f"all launches, ms; at the rate of a copy {floor * 1e3:.2f}\n")
    for size, each in total.items():
        say(f"  {size}: {each * 1e3:.2f}\n")


if __name__ == "__main__":
    main()
