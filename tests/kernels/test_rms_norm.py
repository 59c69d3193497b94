"""Root-mean-square normalisation, against float64."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.act_and_mul.op import product
from kinfolk_kernels.rms_norm import op as reference
from kinfolk_kernels.rms_norm import torch_backend as fast
from kinfolk_kernels.rms_norm.op import RMSNormArguments

EPS = 1e-6


def norm_by(backend):
    """``rms_norm(x, weight, dtype)``: the op of a back end."""

    def rms_norm(x, weight, dtype=torch.float32):
        return backend.rms_norm(RMSNormArguments(weight, EPS, dtype, x.device), x)

    return rms_norm


BACKENDS = pytest.mark.parametrize(
    "rms_norm", [norm_by(reference), norm_by(fast)], ids=["ref", "torch"]
)

# (relative L2 of a row, largest error / rms): one reduction in float32 and two roundings; then one
# rounding to the output type.
BOUND = {
    torch.float32: (5e-7, 5e-6),
    torch.float16: (5e-4, 1e-2),
    torch.bfloat16: (4e-3, 8e-2),
}


def exact(x, weight, eps=EPS):
    wide = x.double()
    normed = wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt()
    return normed if weight is None else normed * weight.double()


@BACKENDS
@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("shape", [(1, 1), (3, 63), (2, 5, 64), (65, 129)])
@pytest.mark.parametrize("weighted", [True, False])
def test_equals_float64(numbers, assert_near, rms_norm, dtype, shape, weighted):
    x = numbers(*shape)
    weight = numbers(shape[-1]) if weighted else None
    found = rms_norm(x, weight, dtype)
    assert found.dtype == dtype
    assert_near(found, exact(x, weight), BOUND[dtype])


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_input_is_squared_wide(numbers, assert_near, rms_norm, dtype):
    """300 squared does not fit float16."""
    x = (300 * numbers(3, 40).clamp(-2, 2)).to(dtype)
    assert_near(rms_norm(x, None), exact(x, None), BOUND[torch.float32])


@BACKENDS
def test_eps_counts_for_small_rows(numbers, assert_near, rms_norm):
    x = 1e-4 * torch.randn(4, 33)
    found = rms_norm(x, None)
    assert_near(found, exact(x, None), BOUND[torch.float32])
    assert float(found.square().mean()) < 0.1


@BACKENDS
def test_a_row_of_zeros_stays_zero(rms_norm):
    assert torch.equal(rms_norm(torch.zeros(2, 8), None), torch.zeros(2, 8))


@BACKENDS
def test_the_norm_comes_before_the_gate(rms_norm):
    """x = (3, 4), w = (1, 2), gate = (0, 1), worked out by hand."""
    x, w, z = torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), torch.tensor([[0.0, 1.0]])
    gated = product("silu", z, rms_norm(x, w))
    torch.testing.assert_close(gated, torch.tensor([[0, 1.6541966]]), rtol=1e-6, atol=0)
