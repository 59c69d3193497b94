"""The sum of the chosen experts and the shared one, against float64."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.add_shared_expert.reference import add_shared_expert

F32 = (2e-6, 2e-5)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_equals_float64(numbers, assert_near, gated, dtype):
    routed, shared, x = numbers(3, 65), numbers(3, 65).to(dtype), numbers(3, 65).to(dtype)
    gate = numbers(65) / 65 if gated else None
    added = shared.double()
    if gate is not None:
        added = added * torch.sigmoid((x.double() * gate.double()).sum(1, keepdim=True))
    found = add_shared_expert(routed, shared, x, gate)
    assert found.dtype == torch.float32
    assert_near(found, routed.double() + added, F32)
