"""The norm kernels in the interpreter, against the references in float64 and the int8 form."""

from __future__ import annotations

import pytest
import torch
from int8_sums import assert_sums_are_those_of_the_rows
from mma_rows_read import assert_rounded_once

from kinfolk_kernels import row_forms
from kinfolk_kernels.int8_rows import GROUP_NUMBERS, MAX_INT8_ROWS, dequantize, made_int8, quantize
from kinfolk_kernels.mma_rows import made_mma
from kinfolk_kernels.rms_norm import op as reference
from kinfolk_kernels.rms_norm import triton_backend as kernels
from kinfolk_kernels.rms_norm.branch import Branch, NormedRows
from kinfolk_kernels.rms_norm.op import (
    AddRMSNormArguments,
    GatedRMSNormArguments,
    RMSNormArguments,
)

pytestmark = pytest.mark.interpreter

EPS = 1e-6

# (relative L2 of a row, largest error / rms): one reduction in float32 and two roundings; then one
# rounding to the output type, of numbers up to 100 times their row's root mean square.
BOUND = {torch.float32: (5e-7, 5e-6), torch.float16: (5e-4, 3e-2)}
DTYPES = pytest.mark.parametrize("dtype", BOUND)


@pytest.fixture(autouse=True)
def poison():
    """Fresh memory is NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def guarded(numbers):
    """``guarded(rows, width)``: a view with NaN on all sides."""

    def draw(rows, width, dtype=torch.float32):
        buffer = torch.full((rows + 8, width + 70), torch.nan, dtype=dtype)
        return buffer[4:-4, 3 : 3 + width].copy_(numbers(rows, width))

    return draw


def rms_norm(x, weight, dtype=torch.float32):
    return kernels.rms_norm(RMSNormArguments(weight, EPS, dtype, x.device), x)


def exact(x, weight, eps=EPS):
    wide = x.double()
    normed = wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt()
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
@pytest.mark.parametrize("shape", [(1, 1), (3, 63), (2, 5, 64), (9, 129), (2, 1025)])
@pytest.mark.parametrize("weighted", [True, False])
def test_equals_float64(numbers, assert_near, dtype, shape, weighted):
    x = numbers(*shape)
    weight = numbers(shape[-1]) if weighted else None
    found = rms_norm(x, weight, dtype)
    assert found.dtype == dtype
    assert_near(found, exact(x, weight), BOUND[dtype])


def test_views_are_read_where_they_lie(numbers, guarded, assert_near):
    """Every other head of a projection, as of a query that comes with its gate."""
    x = guarded(3, 8 * 32).view(3, 4, 2, 32)[:, :, 0]
    found = rms_norm(x, None)
    assert_near(found, exact(x, None), BOUND[torch.float32])


def test_narrow_input_is_squared_wide(numbers, assert_near):
    """300 squared does not fit float16."""
    x = (300 * numbers(3, 40).clamp(-2, 2)).half()
    found = rms_norm(x, None)
    assert_near(found, exact(x, None), BOUND[torch.float32])


def test_rows_of_zeros_and_small_rows(assert_near):
    x = 1e-4 * torch.randn(4, 33, generator=torch.Generator().manual_seed(1))
    x[1] = 0
    found = rms_norm(x, None)
    assert not found[1].any()
    kept = [0, 2, 3]
    assert_near(found[kept], exact(x[kept], None), BOUND[torch.float32])


def test_a_row_does_not_depend_on_how_many_there_are(numbers):
    x, weight = numbers(9, 128), numbers(128)
    together = rms_norm(x, weight)
    alone = [rms_norm(row[None], weight) for row in x]
    assert torch.equal(together, torch.cat(alone))


# -- fused with neighbouring ops ------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "width"), [(1, 128), (17, 384), (35, 640), (3, 5120)])
@pytest.mark.parametrize("weighted", [True, False])
def test_rows_for_tensor_cores(numbers, guarded, rows, width, weighted):
    """In the order for warps, and for warpgroups (from 33 rows on)."""
    residual, branch = numbers(rows, width), Branch(guarded(rows, width, torch.float16))
    residual[0] *= 1e4
    weights = (numbers(width) if weighted else None, None, 100 * numbers(width))
    dtypes = (torch.float16, torch.float16, torch.float32)
    operands = (residual, branch, weights, EPS)
    total, found = kernels.add_rms_norm_rows(*operands, dtypes, int8=False, mma=True)
    wanted, others = kernels.add_rms_norm_rows(*operands, dtypes, int8=False)
    assert torch.equal(total, wanted)
    for made, other, weight in zip(found, others, weights, strict=True):
        assert torch.equal(made.values, other.values)
        assert_rounded_once(made.mma, exact(total, weight), 1e-6)


def test_rows_of_zeros_for_tensor_cores(numbers):
    x = numbers(18, 256)
    x[1] = 0
    found = kernels.rms_norm_rows(x, None, EPS, None, int8=False, mma=True)
    assert found.values is None
    assert_rounded_once(found.mma, exact(x, None), 1e-6)


@pytest.mark.parametrize(
    ("rows", "heads", "dim"), [(2, 6, 64), (17, 3, 128), (33, 40, 128), (140, 40, 128)]
)
def test_gated_rows_for_tensor_cores(numbers, guarded, rows, heads, dim):
    x, weight = numbers(rows, heads, dim), numbers(dim)
    gate = guarded(rows, heads * dim, torch.float16)
    parts = (x, weight, gate, EPS, torch.float16)
    found = kernels.gated_rms_norm_rows(*parts, int8=False, mma=True)
    assert torch.equal(found.values, kernels.gated_rms_norm_rows(*parts, int8=False).values)
    gates = torch.nn.functional.silu(gate.double())
    bounds = gate.double().clamp_min(0.3).view(rows, heads, dim) * weight.double().abs()
    most = dim**0.5 * bounds.amax((1, 2))
    assert_rounded_once(found.mma, exact(x, weight).flatten(1) * gates, 2e-6, most)


@DTYPES
@pytest.mark.parametrize("width", [64, 192, 1088])
@pytest.mark.parametrize("branch_norm", ["none", "plain", "weighted"])
def test_the_sum_and_the_norm_of_the_sum(numbers, guarded, assert_near, dtype, width, branch_norm):
    residual, weight = numbers(5, width), numbers(width)
    rows = guarded(5, width, torch.float16)
    branch = {
        "none": Branch(rows),
        "plain": Branch(rows, None, 1e-5),
        "weighted": Branch(rows, numbers(width), 1e-5),
    }[branch_norm]
    added = rows.double()
    if branch.eps is not None:
        added = exact(rows, branch.weight, branch.eps)
    expected = residual.double() + added
    before = residual.clone()
    total, (found,) = kernels.add_rms_norm_rows(
        residual, branch, (weight,), EPS, (dtype,), int8=True
    )
    assert torch.equal(residual, before)
    assert_near(total, expected, BOUND[torch.float32])
    assert_near(found.values, exact(total, weight), BOUND[dtype])
    check_int8(found.int8, exact(total, weight))


def test_the_sum_may_be_multiplied(numbers, assert_near):
    """Some layers scale the residual stream that they return."""
    residual, rows, weight = numbers(3, 1088), numbers(3, 1088), numbers(1088)
    factor = torch.tensor([0.3])
    expected = (residual.double() + exact(rows, weight)) * factor
    total, (found,) = kernels.add_rms_norm_rows(
        residual, Branch(rows, weight, EPS, factor), (None,), EPS, (None,), int8=True
    )
    assert_near(total, expected, BOUND[torch.float32])
    assert found.values is None
    check_int8(found.int8, exact(expected, None))


@pytest.mark.parametrize(("width", "own"), [(2880, 6), (2880, 2), (2496, 3)])
def test_tiles_of_a_row_in_one_program_or_several_give_the_same_bits(
    numbers, monkeypatch, width, own
):
    """A row of 2496 numbers has five tiles, so its second program has one less than the first."""
    x, rows, weight = numbers(3, width), numbers(3, width).half(), numbers(width)
    branch = Branch(rows, weight, EPS)
    weights, dtypes = (weight, None, numbers(width)), (torch.float16, torch.float32, torch.float32)
    apart, norms = kernels.add_rms_norm_rows(x, branch, weights, EPS, dtypes, int8=True)
    monkeypatch.setattr(kernels, "tiles_of_program", lambda rows, tiles: own)
    together, others = kernels.add_rms_norm_rows(x, branch, weights, EPS, dtypes, int8=True)
    assert torch.equal(apart, together)
    for one, other in zip(norms, others, strict=True):
        assert torch.equal(one.values, other.values)
        assert torch.equal(one.int8.words, other.int8.words)
        assert torch.equal(one.int8.scales, other.int8.scales)


@pytest.mark.parametrize(("heads", "dim"), [(1, 64), (6, 64), (9, 128)])
def test_lanes_that_move_16_bytes_at_once_give_the_same_bits(numbers, monkeypatch, heads, dim):
    x, weight, gate = numbers(3, heads, dim), numbers(dim), numbers(3, heads * dim).half()
    parts = (x, weight, gate, EPS, torch.float16)
    expected = kernels.gated_rms_norm_rows(*parts, int8=False).values
    monkeypatch.setattr(kernels, "WIDE_ROWS", 1)
    assert torch.equal(kernels.gated_rms_norm_rows(*parts, int8=False).values, expected)


@DTYPES
@pytest.mark.parametrize("width", [64, 1088])
@pytest.mark.parametrize("weighted", [True, False])
def test_several_norms_of_a_sum_with_two_normed_rows(
    numbers, guarded, assert_near, dtype, width, weighted
):
    """The norms between a layer's experts and the next layer, and before its experts."""
    residual, factor = numbers(5, width), torch.tensor([0.3])
    first = NormedRows(guarded(5, width, torch.float16), numbers(width), 1e-5)
    second = NormedRows(guarded(5, width), numbers(width) if weighted else None, 1e-4)
    inner = exact(first.rows, first.weight, 1e-5) + exact(second.rows, second.weight, 1e-4)
    after = numbers(width) if weighted else None
    expected = (residual.double() + exact(inner, after, 1e-3)) * factor
    weights, dtypes = (numbers(width), None, numbers(width)), (dtype, torch.float32, dtype)
    branch = Branch((first, second), after, 1e-3, factor)
    total, found = kernels.add_rms_norm_rows(residual, branch, weights, EPS, dtypes, int8=True)
    assert_near(total, expected, BOUND[torch.float32])
    for made, weight, kind in zip(found, weights, dtypes, strict=True):
        assert made.values.dtype == kind
        assert_near(made.values, exact(total, weight), BOUND[kind])
        check_int8(made.int8, exact(total, weight))


@pytest.mark.parametrize("width", [GROUP_NUMBERS, 3 * GROUP_NUMBERS, 17 * GROUP_NUMBERS])
def test_int8_alone(numbers, width):
    x, weight = numbers(3, width), numbers(width)
    x[1] = 0
    found = kernels.rms_norm_rows(x, weight, EPS, None, int8=True)
    assert found.values is None
    check_int8(found.int8, exact(x, weight))


@DTYPES
@pytest.mark.parametrize(("heads", "dim"), [(1, 64), (6, 64), (9, 128), (48, 64)])
def test_the_gate_comes_after_the_norm(numbers, guarded, assert_near, dtype, heads, dim):
    x, weight = numbers(3, heads, dim), numbers(dim)
    gate = guarded(3, heads * dim, torch.float16)
    expected = exact(x, weight).flatten(1) * torch.nn.functional.silu(gate.double())
    found = kernels.gated_rms_norm_rows(x, weight, gate, EPS, dtype, int8=True)
    # Gates that are nearly shut make small rows of a head that others dwarf: compare by rows.
    assert_near(found.values, expected, (BOUND[dtype][0], 20 * BOUND[dtype][1]))
    check_int8(found.int8, expected)


def test_worked_example():
    """x = (3, 4), w = (1, 2), gate = (0, 1), in the first two of 64 numbers."""
    x, w, z = torch.zeros(1, 2, 64), torch.zeros(64), torch.zeros(1, 128)
    x[0, 0, :2], w[:2], z[0, :2] = torch.tensor([[3.0, 4], [1, 2], [0, 1]])
    found = kernels.gated_rms_norm_rows(x * 4, w, z, EPS, torch.float32, int8=False)
    expected = torch.tensor([[0, 1.6541966]])
    # The mean of squares is over 64 numbers instead of two.
    torch.testing.assert_close(found.values[:, :2] / 32**0.5, expected, rtol=1e-6, atol=0)
    assert not found.values[:, 2:].any()


def test_refusals_say_why(numbers):
    cpu, single, half = torch.device("cpu"), torch.float32, torch.bfloat16
    interpreted = "Triton's interpreter computes wrong numbers from bfloat16"

    def reason(weight=None, dtype=single):
        return kernels.supports(RMSNormArguments(weight, EPS, dtype, cpu)).reason

    def reason_of_sum(weights=(None,), dtypes=(single,), branch=single):
        return kernels.supports_add(AddRMSNormArguments(weights, EPS, dtypes, branch, cpu)).reason

    def reason_of_gated(dim):
        arguments = GatedRMSNormArguments(numbers(dim), EPS, single, cpu)
        return kernels.supports_gated(arguments).reason

    assert reason() == reason(numbers(64)) == reason_of_sum() == reason_of_gated(64) == ""
    assert reason(dtype=half) == interpreted
    assert reason(dtype=torch.float64) == "rows of torch.float64"
    assert reason(torch.ones(16385)) == "a row has 16385 numbers, more than 16384"
    assert reason_of_gated(96) == "heads of 96 numbers, not a power of two from 64 to 1024"
    assert reason_of_sum(branch=half) == reason_of_sum(dtypes=(half,)) == interpreted
    four = reason_of_sum((None,) * 4, (single,) * 4)
    assert four == "4 norms of one sum, more than 3"


def test_strided_operands_are_read_like_contiguous_ones(numbers):
    """Columns that are not neighbours: a branch, a gate, heads."""
    residual, wide, weight = numbers(3, 64), numbers(3, 128), numbers(64)
    added = AddRMSNormArguments((weight,), EPS, (torch.float32,), torch.float32, residual.device)
    strided = kernels.add_rms_norm(added, residual, Branch(wide[:, ::2]))
    for one, other in zip(
        strided,
        kernels.add_rms_norm(added, residual, Branch(wide[:, ::2].contiguous())),
        strict=True,
    ):
        assert torch.equal(one, other)
    gated = GatedRMSNormArguments(weight, EPS, torch.float32, residual.device)
    heads = wide[:, None, ::2]
    one = kernels.gated_rms_norm(gated, heads, wide[:, ::2])
    other = kernels.gated_rms_norm(gated, heads.contiguous(), wide[:, ::2].contiguous())
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("shape", "beside"),
    [
        ((MAX_INT8_ROWS, 128), True),
        ((MAX_INT8_ROWS + 1, 128), False),
        ((2, 96), False),
        ((2, 2, 64), False),
    ],
)
def test_few_rows_get_int8_rows_beside_them(numbers, shape, beside):
    x, weight = numbers(*shape), numbers(shape[-1])
    found = rms_norm(x, weight)
    made = made_int8(found)
    assert (made is not None) == beside
    if made is not None:
        assert torch.allclose(dequantize(made), found, atol=float(made.scales.max()))
        assert_sums_are_those_of_the_rows(made)


@pytest.mark.parametrize(
    ("shape", "beside"),
    [
        ((MAX_INT8_ROWS, 256), False),
        ((MAX_INT8_ROWS + 1, 256), True),
        ((MAX_INT8_ROWS + 1, 192), False),
        ((65, 256), False),
        ((4, 17, 256), False),
    ],
)
def test_more_rows_get_rows_for_tensor_cores_beside_them(numbers, monkeypatch, shape, beside):
    """Where their matrix products are compiled, which is not here."""
    x = numbers(*shape)
    assert made_mma(rms_norm(x, None)) is None
    monkeypatch.setattr(row_forms, "unavailable", lambda device: "")
    found = rms_norm(x, None)
    made = made_mma(found)
    assert (made is not None) == beside
    if made is not None:
        assert_rounded_once(made, exact(x, None), 1e-6)
        arguments = AddRMSNormArguments((None,), EPS, (x.dtype,), x.dtype, x.device)
        total, norm = kernels.add_rms_norm(arguments, x, Branch(x))
        assert made_mma(total) is None
        assert made_mma(norm) is not None


def test_the_fused_ops_mean_what_their_references_do(numbers):
    for rows in (3, MAX_INT8_ROWS + 1):
        x, branch, weight = numbers(rows, 192), numbers(rows, 192), numbers(192)
        branch = Branch(branch, weight, EPS, numbers(1))
        dtypes = (torch.float32, torch.float16)
        norms = AddRMSNormArguments((weight, None), EPS, dtypes, torch.float32, x.device)
        found = kernels.add_rms_norm(norms, x, branch)
        expected = reference.add_rms_norm(norms, x, branch)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        assert (made_int8(found[1]) is not None) == (rows == 3)
        heads, gate, weight = numbers(rows, 3, 64), numbers(rows, 192), numbers(64)
        gated = GatedRMSNormArguments(weight, EPS, torch.float32, x.device)
        one = kernels.gated_rms_norm(gated, heads, gate)
        other = reference.gated_rms_norm(gated, heads, gate)
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
