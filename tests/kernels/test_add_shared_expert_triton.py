"""The kernel that adds the shared expert, against float64."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.add_shared_expert import triton as kernel

pytestmark = pytest.mark.interpreter

F32 = (2e-6, 2e-5)


def exact(routed, shared, x, gate):
    added = shared.double()
    if gate is not None:
        added = added * torch.sigmoid((x.double() * gate.double()).sum(1, keepdim=True))
    return routed.double() + added


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 65), (5, 704), (2, 2816)])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_equals_float64(numbers, assert_near, rows, width, gated, dtype):
    routed, shared, x = numbers(rows, width), numbers(rows, width), numbers(rows, width)
    gate = numbers(width) / width if gated else None
    given = (routed, shared.to(dtype), x.to(dtype), gate)
    found = kernel.add_shared_expert(*given)
    assert found.dtype == torch.float32
    assert_near(found, exact(*given), F32)


def test_rows_may_lie_in_wider_tensors_and_all_of_the_output_is_written(numbers):
    routed, shared, x = (numbers(4, 200)[:, 5:105] for _ in range(3))
    out = torch.full((4, 100), torch.nan)
    kernel.add(routed, shared, x, numbers(100) / 100, out).run()
    assert out.isfinite().all()


def test_it_says_what_it_cannot(numbers):
    x = numbers(3, 64)
    assert kernel.supports(x, x, x, None)
    assert "contiguous" in kernel.supports(x, x.T.contiguous().T, x, None).reason
    wide = torch.zeros(1, 20000)
    assert "20000" in kernel.supports(wide, wide, wide, None).reason
    assert "bfloat16" in kernel.supports(x, x.bfloat16(), x, None).reason
