"""Writes a DFlash drafter of random weights in Q8_0, of the size of a released one, for a model
file: what its drafts cost is then that of the released one.

    python benchmarks/drafter_file.py MODEL OUT [--shape NAME] [--block N]

``kinfolk bench --plant`` and ``--widths`` run it; its drafts are never right.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import numpy as np

from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.output import GGUFOutput, Job, OutputTensor
from kinfolk.gguf.values import ByteArray
from kinfolk.spec.dflash.layouts import ARCHITECTURE, CONTEXT_NORM, FC, LAYOUT_B, OUTPUT_NORM
from kinfolk.synth.blocks import random_blocks, uniform

F32, Q8_0 = 0, 8
Q8_0_NUMBERS, Q8_0_BYTES = 32, 34
PIECE_BLOCKS = 1 << 15

say = sys.stdout.write


@dataclass(frozen=True)
class Released:
    """Sizes of a released drafter; ``features`` are layers of its model, from 0."""

    layers: int
    heads: int
    kv_heads: int
    dim: int
    feed_forward: int
    features: tuple[int, ...]


SHAPES = {
    "27b": Released(5, 32, 8, 128, 17408, (1, 16, 31, 46, 61)),
    "35b-a3b": Released(8, 32, 4, 128, 6144, (1, 10, 19, 28, 37)),
    "4b": Released(5, 32, 8, 128, 9728, (1, 8, 15, 22, 29)),
    "tiny": Released(2, 4, 2, 32, 96, (0, 2, 3)),
}


def tensors(shape: Released, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield FC, (width, len(shape.features) * width)
    yield CONTEXT_NORM, (width,)
    yield OUTPUT_NORM, (width,)
    queries, keys = shape.heads * shape.dim, shape.kv_heads * shape.dim
    for layer in range(shape.layers):
        for part, size in (
            ("attn_norm", (width,)),
            ("ffn_norm", (width,)),
            ("attn_q", (queries, width)),
            ("attn_k", (keys, width)),
            ("attn_v", (keys, width)),
            ("attn_output", (width, queries)),
            ("attn_q_norm", (shape.dim,)),
            ("attn_k_norm", (shape.dim,)),
            ("ffn_gate", (shape.feed_forward, width)),
            ("ffn_up", (shape.feed_forward, width)),
            ("ffn_down", (width, shape.feed_forward)),
        ):
            yield f"blk.{layer}.{part}.weight", size


def jobs(layouts: list[OutputTensor]) -> Iterator[Job]:
    for number, layout in enumerate(layouts):
        if layout.ggml_type == F32:
            source = np.random.SFC64(number)
            yield Job(layout.name, 0, partial(uniform, layout.shape[0], 0.7, 1.3, source))
            continue
        blocks, deviation = layout.nbytes // Q8_0_BYTES, layout.shape[1] ** -0.5
        for start in range(0, blocks, PIECE_BLOCKS):
            count = min(PIECE_BLOCKS, blocks - start)
            produce = partial(matrix, count, deviation, (number, start))
            yield Job(layout.name, start * Q8_0_BYTES, produce)


def matrix(count: int, deviation: float, key: tuple[int, int]) -> ByteArray:
    return random_blocks("Q8_0", count, deviation, np.random.SFC64(np.random.SeedSequence(key)))


def write(model: Path, out: Path, shape: Released, block: int) -> int:
    """Returns the bytes of the tensors."""
    with GGUFFile.open(model) as file:
        meta = file.metadata
        width = meta.integer(meta.arch_key("embedding_length"))
        vocabulary = len(meta.strings("tokenizer.ggml.tokens"))
    keys: dict[str, object] = {
        "block_count": shape.layers,
        "embedding_length": width,
        "vocab_size": vocabulary,
        "rope.freq_base": 10_000_000.0,
        "block_size": block,
        # This layout counts the inputs of layers.
        LAYOUT_B.feature_layers: [layer + 1 for layer in shape.features],
    }
    metadata: dict[str, object] = {"general.architecture": ARCHITECTURE}
    metadata |= {f"{ARCHITECTURE}.{key}": value for key, value in keys.items()}
    metadata[LAYOUT_B.mask_token] = vocabulary - 1
    layouts = []
    for name, size in tensors(shape, width):
        if len(size) == 1:
            layouts.append(OutputTensor(name, size, F32, 4 * size[0]))
        else:
            nbytes = prod(size) // Q8_0_NUMBERS * Q8_0_BYTES
            layouts.append(OutputTensor(name, size, Q8_0, nbytes))
    with GGUFOutput(out, metadata, layouts, overwrite=True) as output:
        output.run(jobs(layouts), workers=os.cpu_count() or 1)
    return sum(layout.nbytes for layout in layouts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=list(SHAPES), default="27b")
    parser.add_argument("--block", type=int, default=16)
    options = parser.parse_args()
    nbytes = write(options.model, options.out, SHAPES[options.shape], options.block)
    say(f"{options.out}: {nbytes / 1e6:,.0f} MB\n")


if __name__ == "__main__":
    main()
