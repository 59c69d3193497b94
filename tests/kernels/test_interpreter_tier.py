"""The interpreter tier itself: which results of it are reliable, and which are not.

Every kernel test of this tier rests on these facts about Triton's interpreter.
"""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

pytestmark = pytest.mark.interpreter


@triton.jit
def product_kernel(a, b, out, SIZE: tl.constexpr):
    rows = tl.arange(0, SIZE)
    tile = rows[:, None] * SIZE + rows[None, :]
    tl.store(out + tile, tl.dot(tl.load(a + tile), tl.load(b + tile)))


@triton.jit
def sum_kernel(x, out, n, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(out, tl.sum(tl.load(x + place, mask=place < n, other=0.0)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_products_are_right_in_the_types_that_kernel_tests_use(dtype):
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 16, 16, generator=generator).to(dtype)
    out = torch.empty(16, 16)
    product_kernel[(1,)](a, b, out, 16)
    torch.testing.assert_close(out, a.float() @ b.float(), rtol=1e-5, atol=1e-5)


def test_library_functions_are_interpreted_too():
    """They are not where the variable is set after Triton was imported."""
    x = torch.arange(5, dtype=torch.float32)
    out = torch.zeros(1)
    sum_kernel[(1,)](x, out, 5, 8)
    assert out.item() == 10.0
