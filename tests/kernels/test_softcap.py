"""Bent logits, against float64."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.softcap.op import SoftcapArguments, softcap

CPU = torch.device("cpu")


@pytest.mark.parametrize("cap", [1.5, 30.0])
def test_equals_float64(numbers, cap):
    logits = 20 * numbers(3, 129)
    exact = cap * (logits.double() / cap).tanh()
    capped = softcap(SoftcapArguments(cap, CPU), logits)
    torch.testing.assert_close(capped.double(), exact, rtol=1e-6, atol=1e-6)


def test_large_logits_stay_between_the_bounds():
    logits = torch.tensor([[-1e30, -1e4, 0.0, 1e4, 1e30]])
    assert softcap(SoftcapArguments(30.0, CPU), logits).tolist() == [[-30, -30, 0, 30, 30]]
