"""Matrix times rows, against float64."""

from __future__ import annotations

import gguf
import pytest
import torch

from kinfolk.quant.formats import QuantFormats
from kinfolk.quant.tensor import QuantTensor
from kinfolk_kernels.linear import op as reference
from kinfolk_kernels.linear import torch_backend as fast
from kinfolk_kernels.linear.op import LinearArguments

BACKENDS = pytest.mark.parametrize(
    "linear", [reference.product, fast.product], ids=["ref", "torch"]
)

# (relative L2 of a row, largest error / rms). Sums of 300 products in float32; inputs have tails,
# so terms cancel. Three times what was measured.
F32 = (2e-6, 3e-6)
# The result is rounded to the type of x once, after accumulation in float32: half a unit in the
# last place is 2^-11 and 2^-8 of the largest number.
ROUNDED = {torch.float16: (5e-4, 5e-3), torch.bfloat16: (4e-3, 6e-2)}


@BACKENDS
@pytest.mark.parametrize(("rows", "k", "n"), [(1, 32, 17), (2, 300, 1), (5, 64, 129), (63, 127, 3)])
def test_equals_float64(numbers, assert_near, linear, rows, k, n):
    x, weight = numbers(rows, k), numbers(n, k)
    found = linear(x, weight)
    expected = x.double() @ weight.double().T
    assert found.dtype == torch.float32
    # A single output column may cancel to nearly nothing: the whole result is the row.
    assert_near(found.flatten()[None], expected.flatten()[None], F32)


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_rows_are_accumulated_wide(numbers, assert_near, linear, dtype):
    x, weight = numbers(7, 300).to(dtype) / 8, numbers(33, 300).to(dtype) / 8
    found = linear(x, weight)
    assert found.dtype == dtype
    assert_near(found, x.double() @ weight.double().T, ROUNDED[dtype])


@BACKENDS
def test_one_hot_rows_pick_columns_exactly(numbers, linear):
    weight = numbers(13, 31)
    assert torch.equal(linear(torch.eye(31), weight), weight.T)


@BACKENDS
@pytest.mark.parametrize("name", ["Q8_0", "Q5_0"])
def test_packed_weights_equal_their_numbers(numbers, assert_near, linear, name):
    kind = gguf.GGMLQuantizationType[name]
    packed = gguf.quants.quantize(numbers(11, 96).numpy(), kind)
    weight = QuantTensor.from_bytes(packed, QuantFormats().named(name), (11, 96))
    dense = torch.from_numpy(gguf.quants.dequantize(packed, kind)).double()
    x = numbers(5, 96)
    assert_near(linear(x, weight), x.double() @ dense.T, F32)


@BACKENDS
def test_rows_do_not_see_each_other(numbers, linear):
    x = numbers(4, 40)
    x[2] = torch.nan
    found = linear(x, numbers(6, 40))
    assert found[2].isnan().all()
    assert found[[0, 1, 3]].isfinite().all()


@BACKENDS
def test_no_rows_give_no_rows(numbers, linear):
    assert linear(torch.empty(0, 8), numbers(3, 8)).shape == (0, 3)


@pytest.mark.parametrize("module", [reference, fast])
def test_several_matrices_are_each_multiplied_alone(module, numbers):
    x, weights = numbers(3, 16), [numbers(rows, 16) for rows in (5, 1, 7)]
    arguments = LinearArguments(tuple(weights), x.dtype, x.device)
    for y, weight in zip(module.linear(arguments, x), weights, strict=True):
        assert torch.equal(y, module.product(x, weight))
