"""Norms and gated products on the GPU, with the widths of released models."""

from __future__ import annotations

import pytest
import torch
from int8_sums import assert_sums_are_those_of_the_rows
from mma_rows_read import assert_rounded_once

from kinfolk_kernels.act_and_mul import triton_backend as act_and_mul
from kinfolk_kernels.int8_rows import quantize
from kinfolk_kernels.rms_norm import triton_backend as kernels
from kinfolk_kernels.rms_norm.branch import Branch, NormedRows
from kinfolk_kernels.rms_norm.op import RMSNormArguments
from kinfolk_kernels.row_outputs import WIDE_ROWS
from kinfolk_kernels.softcap import triton_backend as softcap
from kinfolk_kernels.softcap.op import SoftcapArguments

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

EPS = 1e-6

# (relative L2 of a row, largest error / rms): one reduction in float32 and two roundings; then one
# rounding to the output type. The largest of these numbers is up to 500 times the root mean square
# of all, so its error may be 500 times that of a number near 1: 4 x 2^-24, 2^-11 and 2^-8.
BOUND = {
    torch.float32: (5e-7, 1.2e-4),
    torch.float16: (5e-4, 2.5e-1),
    torch.bfloat16: (4e-3, 2.0),
}
DTYPES = pytest.mark.parametrize("dtype", BOUND)


def exact(x, weight):
    wide = x.double()
    normed = wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt()
    return normed if weight is None else normed * weight.double()


def check_int8(found, expected):
    """Int8 rows as ``quantize`` makes them, up to one unit."""
    rows = quantize(expected.float())
    torch.testing.assert_close(found.scales, rows.scales, rtol=1e-5, atol=0)
    q, wanted = found.words.view(torch.int8).int(), rows.words.view(torch.int8).int()
    assert int((q - wanted).abs().max()) <= 1
    assert float((q != wanted).float().mean()) < 0.01
    assert_sums_are_those_of_the_rows(found)


@DTYPES
@pytest.mark.parametrize("shape", [(1, 5120), (16, 2048), (7, 2816), (16, 24, 256), (3, 48, 128)])
def test_norms(numbers, assert_near, poisoned, dtype, shape):
    x, weight = numbers(*shape).to("cuda", dtype), numbers(shape[-1]).cuda()
    with poisoned():
        found = kernels.rms_norm(RMSNormArguments(weight, EPS, dtype, x.device), x)
    assert_near(found, exact(x, weight), BOUND[dtype])


@DTYPES
@pytest.mark.parametrize(("rows", "width"), [(1, 5120), (16, 5120), (300, 2048), (4, 2816)])
def test_the_sum_and_the_norm_of_the_sum(numbers, assert_near, poisoned, dtype, rows, width):
    residual, weight = numbers(rows, width).cuda(), numbers(width).cuda()
    added, post = numbers(rows, width).to("cuda", dtype), numbers(width).cuda()
    for branch, wide in (
        (Branch(added), added.double()),
        (Branch(added, post, EPS), exact(added, post)),
    ):
        with poisoned():
            total, (found,) = kernels.add_rms_norm_rows(
                residual, branch, (weight,), EPS, (dtype,), int8=True
            )
        assert_near(total, residual.double() + wide, BOUND[torch.float32])
        assert_near(found.values, exact(total, weight), BOUND[dtype])
        check_int8(found.int8, exact(total, weight))


@DTYPES
@pytest.mark.parametrize("rows", [1, 16, 300])
def test_several_norms_of_a_sum_with_two_normed_rows(numbers, assert_near, poisoned, dtype, rows):
    width = 2816
    residual, factor = numbers(rows, width).cuda(), torch.tensor([0.3], device="cuda")
    first, second = (
        NormedRows(numbers(rows, width).to("cuda", kind), numbers(width).cuda(), EPS)
        for kind in (dtype, torch.float32)
    )
    inner = exact(first.rows, first.weight) + exact(second.rows, second.weight)
    after, weights = numbers(width).cuda(), [numbers(width).cuda() for _ in range(3)]
    branch, dtypes = Branch((first, second), after, EPS, factor), (dtype, dtype, torch.float32)
    with poisoned():
        total, found = kernels.add_rms_norm_rows(residual, branch, weights, EPS, dtypes, int8=True)
    assert_near(total, (residual.double() + exact(inner, after)) * factor, BOUND[torch.float32])
    for made, weight, kind in zip(found, weights, dtypes, strict=True):
        assert_near(made.values, exact(total, weight), BOUND[kind])
        check_int8(made.int8, exact(total, weight))


@DTYPES
@pytest.mark.parametrize(("rows", "heads"), [(1, 48), (16, 48), (300, 32)])
def test_the_gate_comes_after_the_norm(numbers, assert_near, poisoned, dtype, rows, heads):
    x, weight = numbers(rows, heads, 128).cuda(), numbers(128).cuda()
    gate = numbers(rows, heads * 128).to("cuda", dtype)
    expected = exact(x, weight).flatten(1) * torch.nn.functional.silu(gate.double())
    with poisoned():
        found = kernels.gated_rms_norm_rows(x, weight, gate, EPS, dtype, int8=True)
    assert_near(found.values, expected, (2 * BOUND[dtype][0], 20 * BOUND[dtype][1]))
    check_int8(found.int8, expected)


@DTYPES
@pytest.mark.parametrize(("rows", "width"), [(1, 17408), (16, 17408), (300, 512), (4, 704)])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_products(numbers, assert_near, poisoned, dtype, rows, width, activation):
    both = numbers(rows, 2 * width).to("cuda", dtype)
    gate, up = both.chunk(2, 1)
    if activation == "silu":
        curved = torch.nn.functional.silu(gate.double())
    else:
        curved = torch.nn.functional.gelu(gate.double(), approximate="tanh")
    with poisoned():
        found = act_and_mul.multiply_rows(activation, gate, up, dtype, int8=True)
    bound = (2 * BOUND[dtype][0], 50 * BOUND[dtype][1])
    assert_near(found.values, curved * up.double(), bound)
    check_int8(found.int8, curved * up.double())


@pytest.mark.parametrize("rows", [17, 24, 64, 512])
def test_rows_for_tensor_cores(numbers, poisoned, rows):
    """In the order for warps and for warpgroups; values have the bits of rows without the form."""
    dtype = torch.bfloat16
    x, branch = numbers(rows, 5120).cuda(), Branch(numbers(rows, 5120).to("cuda", dtype))
    weight, of_heads = numbers(5120).cuda(), numbers(128).cuda()
    heads, z = numbers(rows, 48, 128).cuda(), numbers(rows, 6144).to("cuda", dtype)
    gate, up = numbers(rows, 2 * 17408).to("cuda", dtype).chunk(2, 1)
    gated = (heads, of_heads, z, EPS, dtype)
    silu = torch.nn.functional.silu
    with poisoned():
        total, (norm,) = kernels.add_rms_norm_rows(
            x, branch, (weight,), EPS, (dtype,), int8=False, mma=True
        )
        mixed = kernels.gated_rms_norm_rows(*gated, int8=False, mma=True)
        product = act_and_mul.multiply_rows("silu", gate, up, dtype, int8=False, mma=True)
    assert_rounded_once(norm.mma, exact(total, weight), 2e-6)
    expected = exact(heads, of_heads).flatten(1) * silu(z.double())
    gates = z.double().clamp_min(0.3).view(heads.shape) * of_heads.double().abs()
    assert_rounded_once(mixed.mma, expected, 4e-6, 128**0.5 * gates.amax((1, 2)))
    most = (gate.double().clamp_min(0.3) * up.double().abs()).amax(1)
    assert_rounded_once(product.mma, silu(gate.double()) * up.double(), 4e-6, most)

    last = slice(rows - 1, rows)
    _, (one,) = kernels.add_rms_norm_rows(
        x[last], Branch(branch.rows[last]), (weight,), EPS, (dtype,), int8=True
    )
    assert torch.equal(one.values[0], norm.values[-1])
    assert torch.equal(kernels.gated_rms_norm_rows(*gated, int8=False).values, mixed.values)
    plain = act_and_mul.multiply_rows("silu", gate, up, dtype, int8=False)
    assert torch.equal(plain.values, product.values)


@pytest.mark.parametrize("rows", [1, 16])
def test_bent_logits(numbers, poisoned, rows):
    logits = 20 * numbers(rows, 262144).cuda()
    with poisoned():
        found = softcap.softcap(SoftcapArguments(30.0, logits.device), logits)
    exact = 30 * (logits.double() / 30).tanh()
    # Near zero the error is some 2^-24 of the cap, not of the logit.
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=6e-6)


def test_twenty_runs_and_any_company_give_the_same_bits(numbers):
    x, weight = numbers(16, 5120).cuda(), numbers(5120).cuda()
    first = kernels.rms_norm_rows(x, weight, EPS, torch.float16, int8=True)
    for _ in range(20):
        again = kernels.rms_norm_rows(x, weight, EPS, torch.float16, int8=True)
        assert torch.equal(again.values, first.values)
        assert torch.equal(again.int8.words, first.int8.words)
    for row in range(16):
        alone = kernels.rms_norm_rows(x[row : row + 1], weight, EPS, torch.float16, int8=True)
        assert torch.equal(alone.values[0], first.values[row])
        assert torch.equal(alone.int8.scales[0], first.int8.scales[row])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_in_large_company_have_the_same_bits(numbers, dtype):
    """From ``WIDE_ROWS`` rows on, lanes move more bytes at once."""
    rows, weight = numbers(WIDE_ROWS, 6144).cuda().to(dtype), numbers(128).cuda()
    heads, gate = numbers(WIDE_ROWS, 48, 128).cuda(), numbers(WIDE_ROWS, 6144).cuda().to(dtype)

    def results(some):
        gated = kernels.gated_rms_norm_rows(heads[some], weight, gate[some], EPS, dtype, int8=False)
        product = act_and_mul.multiply_rows("silu", gate[some], rows[some], dtype, int8=False)
        return gated.values, product.values

    many = results(slice(None))
    for some in (slice(0, 1), slice(70, 100)):
        for one, other in zip(results(some), many, strict=True):
            assert torch.equal(one, other[some])
