"""Digests and scores of chunks: the time of the launches that they take.

    python benchmarks/kernels/chunks.py [--json FILE] [--layers 3]

Keys of a model with 24 query and 4 key heads of 256 dimensions. Digests of 1 and 32 chunks for each
storage format of keys; scores of 8K to 256K positions for 1 and 8 rows. One CUDA graph holds
LAUNCHES of them, and a figure is a part of its median replay. Floors are bytes at the bandwidth of
a copy in the same run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from timing import copy_bandwidth, replay_seconds

from kinfolk_kernels.chunk_digest.op import KeyDigest, digest_bytes
from kinfolk_kernels.chunk_digest.triton_backend import compress
from kinfolk_kernels.chunk_scores.op import ChunkScoresArguments
from kinfolk_kernels.chunk_scores.triton_backend import chunk_scores
from kinfolk_kernels.codecs import Coded, Stored

LAUNCHES = 20
QUERY_HEADS, KEY_HEADS, DIM = 24, 4, 256
POSITIONS = 64
"""Of a chunk."""

DEVICE = torch.device("cuda")


def section(format: str, blocks: int) -> Stored:
    keys = torch.randn(blocks, KEY_HEADS, POSITIONS, DIM, device=DEVICE)
    if format != "q8_0":
        return keys.to({"bf16": torch.bfloat16, "f16": torch.float16}[format])
    codes = torch.randint(0, 256, keys.shape, dtype=torch.uint8, device=DEVICE)
    return Coded(format, codes, keys[..., : DIM // 32].half(), rotated=True)


def digest_work(format: str, chunks: int) -> tuple[Callable[[], None], int]:
    """A step that compresses ``chunks`` of one layer, and the bytes that it must move."""
    keys = section(format, chunks + 1)
    places = torch.arange(chunks, device=DEVICE).int()
    digest = KeyDigest.empty((chunks, KEY_HEADS), DIM, DEVICE)
    launch = compress(keys, places + 1, torch.zeros_like(places), places, digest)
    planes = (keys.codes, keys.scales) if isinstance(keys, Coded) else (keys,)
    return launch.run, sum(plane.nbytes for plane in planes) + digest.codes.nbytes


def score_work(positions: int, layers: int, rows: int) -> tuple[Callable[[], None], int]:
    """A step that scores the chunks of ``positions``, and the bytes of their digests."""
    chunks = positions // POSITIONS
    digest = KeyDigest.empty((chunks, layers, KEY_HEADS), DIM, DEVICE)
    digest.codes.random_(0, 256)
    digest.scales.fill_(0.5)
    places = torch.randperm(chunks, device=DEVICE).int()
    queries = torch.randn(rows, layers, QUERY_HEADS, DIM, device=DEVICE).bfloat16()
    arguments = ChunkScoresArguments(
        QUERY_HEADS, KEY_HEADS, DIM, DIM**-0.5, False, queries.dtype, DEVICE
    )

    def step() -> None:
        chunk_scores(arguments, queries, digest, places)

    return step, positions * layers * digest_bytes(KEY_HEADS, DIM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--layers", type=int, default=3, help="layers whose digests are kept")
    options = parser.parse_args()
    bandwidth = copy_bandwidth()
    works = {
        f"digest of {chunks} chunks, {format}": digest_work(format, chunks)
        for format in ("bf16", "f16", "q8_0")
        for chunks in (1, 32)
    }
    works |= {
        f"scores of {positions}, {rows} rows": score_work(positions, options.layers, rows)
        for positions in (8192, 32768, 131072, 262144)
        for rows in (1, 8)
    }
    figures = {}
    for name, (step, size) in works.items():
        seconds = seconds_of(step)
        figures[name] = {"us": 1e6 * seconds, "floor_us": 1e6 * size / bandwidth}
        sys.stdout.write(
            f"{name:32} {1e6 * seconds:9.2f} us, floor {1e6 * size / bandwidth:8.2f} us\n"
        )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def seconds_of(step: Callable[[], None]) -> float:
    def steps() -> None:
        for _ in range(LAUNCHES):
            step()

    return replay_seconds(steps) / LAUNCHES


if __name__ == "__main__":
    main()
