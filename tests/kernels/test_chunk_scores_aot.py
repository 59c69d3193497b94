"""Digests, scores and kept queries compile for the GPUs that we name, in the shapes of released
models: they fit, and no loop spills."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.aot import compile_aot
from kinfolk_kernels.chunk_digest.op import KeyDigest
from kinfolk_kernels.chunk_digest.triton_backend import compress
from kinfolk_kernels.chunk_scores import triton_backend as kernel
from kinfolk_kernels.chunk_scores.op import ChunkScoresArguments
from kinfolk_kernels.codecs import Coded
from kinfolk_kernels.write_queries.triton_backend import keep

SHARED = {86: 99 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that a program may use, by compute capability."""

SHAPES = ((24, 4, 256), (16, 2, 512), (48, 8, 128))
"""Query heads, key heads, dimensions."""

CASES = [(SHAPES[0], 90), (SHAPES[1], 86)]
OTHERS = [(shape, target) for target in SHARED for shape in SHAPES if (shape, target) not in CASES]


def empty(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def all_launches(heads, kv_heads, dim):
    index = empty(32, dtype=torch.int32)
    digest = KeyDigest.empty((8, 3, kv_heads), dim, "meta")
    codes = empty(8, kv_heads, 64, dim, dtype=torch.uint8)
    scales = empty(8, kv_heads, 64, dim // 32, dtype=torch.float16)
    sections = [Coded("q8_0", codes, scales, rotated=True)]
    sections += [Coded("q4_0", codes[..., : dim // 2], scales)]
    sections += [empty(8, kv_heads, 64, dim, dtype=torch.bfloat16)]
    for section in sections:
        yield compress(section, index, index, index, digest.layer(1))
    for rows in (1, 8):
        queries = empty(rows, 3, heads, dim, dtype=torch.bfloat16)
        arguments = ChunkScoresArguments(
            heads, kv_heads, dim, 1.0, False, queries.dtype, queries.device
        )
        scratch = kernel.ScoreScratch.make(queries, 32)
        # Only the products depend on the number of rows.
        every = list(kernel.launches(arguments, queries, digest, index, scratch))
        yield from (every if rows == 8 else every[1:2])
    of_row = empty(32, dtype=torch.int64)
    spans, path = empty(16, 4, dtype=torch.int32), empty(16, 64, dtype=torch.int64)
    ring = empty(16, 8, 3, heads, dim, dtype=torch.bfloat16)[:, :, 1]
    yield keep(queries[:, 0], of_row, spans, path, of_row, of_row, ring)


@pytest.mark.parametrize(("shape", "capability"), CASES)
def test_nothing_spills_in_a_loop_or_takes_more_than_there_is(shape, capability):
    check_fits(shape, capability)


@pytest.mark.long
@pytest.mark.parametrize(("shape", "capability"), OTHERS)
def test_nothing_spills_elsewhere(shape, capability):
    check_fits(shape, capability)


def check_fits(shape, capability):
    names = []
    for launch in all_launches(*shape):
        usage = compile_aot(launch, capability)
        names.append(launch.kernel.fn.__name__)
        assert usage.shared <= SHARED[capability], names[-1]
        assert usage.loop_spills == 0, names[-1]
    scoring = ["chunk_attention_kernel", "attention_totals_kernel", "largest_share_kernel"]
    rotated = ["chunk_attention_kernel", "rotate_queries_kernel", *scoring]
    assert names == ["chunk_digest_kernel"] * 3 + rotated + ["write_queries_kernel"]
