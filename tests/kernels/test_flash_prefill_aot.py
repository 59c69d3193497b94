"""The kernels of sparse attention compile for the GPUs that we name, in the shapes of released
models: they fit, and no loop spills."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.aot import compile_aot
from kinfolk_kernels.flash_prefill import triton_backend as kernel
from kinfolk_kernels.flash_prefill.op import FlashPrefillArguments
from kinfolk_kernels.stored_kind import StoredKind

SHARED = {86: 99 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that a program may use, by compute capability."""

SHAPES = ((16, 8, 128), (24, 4, 256), (8, 2, 64))
"""Query heads, key heads, dimensions."""

CASES = [(SHAPES[0], 90), (SHAPES[1], 86)]
OTHERS = [(shape, target) for target in SHARED for shape in SHAPES if (shape, target) not in CASES]


def all_launches(heads, kv_heads, dim):
    def empty(*shape, dtype=torch.bfloat16):
        return torch.empty(shape, dtype=dtype, device="meta")

    pool, q = empty(40, kv_heads, 64, dim), empty(512, heads, dim)
    kind = StoredKind.of(pool)
    arguments = FlashPrefillArguments(heads, kind, kind, 0.1, q.dtype, q.device)
    scratch = kernel.SparseScratch.make(q, kv_heads, dim, 1536)
    blocks = empty(32, dtype=torch.int32)
    yield from kernel.launches(arguments, q, (pool, pool), blocks, 1536, 4096, scratch)


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
    assert names == [
        "block_means_kernel",
        "block_weights_kernel",
        "choose_blocks_kernel",
        "kept_attention_kernel",
    ]
