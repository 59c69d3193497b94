"""The kernels of sparse attention, against the reference."""

from __future__ import annotations

import pytest
import torch
from sparse_inputs import sparse_case

from kinfolk_kernels.flash_prefill import triton_backend as kernel
from kinfolk_kernels.flash_prefill.op import (
    FlashPrefillArguments,
    block_means,
    flash_prefill,
    kept_blocks,
)
from kinfolk_kernels.stored_kind import StoredKind

CPU = torch.device("cpu")
F32, F16 = 1e-4, 4e-3
"""Of a weighted mean of normal numbers. Products of up to 100 are rounded, by 1e-5, before they are
exponents: 3e-5 was measured. Float16 rounds shares before they are multiplied."""

pytestmark = pytest.mark.interpreter


def arguments_of(case, dtype=torch.float32):
    keys, values = (StoredKind.of(pool) for pool in case.pools)
    return FlashPrefillArguments(case.q.shape[1], keys, values, 0.125, dtype, CPU)


def both(case, start, stop, length, dtype=torch.float32):
    arguments, q = arguments_of(case, dtype), case.q[start:stop]
    used = case.blocks[: -(-stop // 64)]
    assert kernel.supports(arguments)
    expected = flash_prefill(arguments, q, case.pools, used, start, length)
    return kernel.flash_prefill(arguments, q, case.pools, used, start, length), expected


@pytest.mark.parametrize(
    ("length", "heads", "kv_heads", "dim"),
    [(1, 1, 1, 64), (129, 2, 1, 64), (1030, 1, 1, 64), (400, 2, 2, 128)],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_equals_the_reference(length, heads, kv_heads, dim, dtype):
    case = sparse_case(length, heads, kv_heads, dim, seed=3, dtype=dtype)
    found, expected = both(case, 0, length, length, dtype)
    bound = F32 if dtype == torch.float32 else F16
    assert found.dtype == dtype
    assert torch.allclose(found, expected, rtol=bound, atol=bound)


@pytest.mark.parametrize(("start", "stop"), [(0, 512), (512, 1100), (1092, 1100), (640, 700)])
def test_equals_the_reference_in_slices(start, stop):
    case = sparse_case(1100, 1, 1, seed=5)
    found, expected = both(case, start, stop, 1100)
    assert torch.allclose(found, expected, rtol=F32, atol=F32)


def test_the_kept_blocks_are_those_of_the_reference():
    case = sparse_case(1280, 1, 1, seed=7)
    arguments = arguments_of(case)
    scratch = kernel.SparseScratch.make(case.q, 1, 64, 0)
    for launch in kernel.launches(arguments, case.q, case.pools, case.blocks, 0, 1280, scratch):
        launch.run()
    expected = kept_blocks(case.q, block_means(case.k), 0, 1280, 0.125)
    fewer = 0
    for m, of_block in enumerate(expected):
        for head, numbers in enumerate(of_block):
            count = int(scratch.kept_count[m, head])
            assert scratch.kept[m, head, :count].tolist() == numbers
            fewer += count < m + 1
    assert fewer, "something is left out"


def test_strided_queries_give_the_same_bits():
    case = sparse_case(300, 2, 1)
    wide = torch.full((300, 2, 128), torch.nan)
    wide[..., 64:] = case.q
    arguments = arguments_of(case)
    rest = (case.pools, case.blocks, 0, 300)
    found = kernel.flash_prefill(arguments, wide[..., 64:], *rest)
    assert torch.equal(found, kernel.flash_prefill(arguments, case.q, *rest))


def test_what_it_cannot_run_it_refuses():
    float_kind = StoredKind(1, 64, torch.float32)
    for keys, dtype, reason in [
        (StoredKind(1, 64, None, "q8_0"), torch.float32, "keys stored as q8_0"),
        (StoredKind(1, 80, torch.float32), torch.float32, "keys of 80 dimensions"),
        (float_kind, torch.float64, "queries of torch.float64"),
        (float_kind, torch.bfloat16, "interpreter"),
    ]:
        verdict = kernel.supports(FlashPrefillArguments(2, keys, float_kind, 1.0, dtype, CPU))
        assert not verdict
        assert reason in verdict.reason
    case = sparse_case(10, 1, 1)
    with pytest.raises(ValueError, match="more than 4096 blocks"):
        kernel.flash_prefill(arguments_of(case), case.q, case.pools, case.blocks, 0, 10**6)
