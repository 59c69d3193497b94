"""Writes a synthetic model file: the right sizes, types and tokens, random weights.

Every piece of a tensor has a random stream of its own, keyed by seed, tensor and place, so that
no two tensors are alike and the file depends on the seed alone, not on the number of threads.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import partial
from math import prod
from pathlib import Path
from typing import Final

import numpy as np

from kinfolk.gguf.output import GGUFOutput, Job, Progress
from kinfolk.gguf.tensor_types import TENSOR_TYPES
from kinfolk.gguf.values import ByteArray
from kinfolk.synth.blocks import random_blocks, uniform
from kinfolk.synth.plan import SynthPlan, SynthTensor

PIECE_BYTES: Final = 1 << 20
"""Small enough that scales are set while the codes are still in the cache."""


def write_synthetic(
    plan: SynthPlan,
    path: Path,
    *,
    seed: int = 0,
    overwrite: bool = False,
    progress: Progress | None = None,
    workers: int = 0,
) -> None:
    """Write the file; ``workers`` threads fill it, as many as there are cores if 0.

    Raises :class:`OutputError` or :class:`CapacityError`; then, as after an interruption, there is
    no file under ``path`` that was not there before.
    """
    layouts = [tensor.layout for tensor in plan.tensors]
    with GGUFOutput(path, plan.metadata, layouts, overwrite=overwrite) as output:
        output.run(_jobs(plan, seed), workers=workers or os.cpu_count() or 1, progress=progress)


def _jobs(plan: SynthPlan, seed: int) -> Iterator[Job]:
    for tensor in plan.tensors:
        layout = tensor.layout
        if tensor.range is not None:
            yield Job(layout.name, 0, partial(_vector, tensor, seed))
            continue
        size = TENSOR_TYPES[layout.ggml_type].bytes
        step = max(1, PIECE_BYTES // size)
        blocks = layout.nbytes // size
        for number, start in enumerate(range(0, blocks, step)):
            count = min(step, blocks - start)
            yield Job(layout.name, start * size, partial(_matrix, tensor, seed, number, count))


def _matrix(tensor: SynthTensor, seed: int, piece: int, count: int) -> ByteArray:
    source = _stream(seed, tensor.layout.name, piece)
    return random_blocks(tensor.kind, count, tensor.deviation, source)


def _vector(tensor: SynthTensor, seed: int) -> ByteArray:
    if tensor.constants is not None:
        return np.array(tensor.constants, "<f4").view(np.uint8)
    assert tensor.range is not None
    low, high = tensor.range
    return uniform(prod(tensor.layout.shape), low, high, _stream(seed, tensor.layout.name, 0))


def _stream(seed: int, name: str, piece: int) -> np.random.BitGenerator:
    key = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
    return np.random.SFC64(np.random.SeedSequence((seed, key, piece)))
