"""The kernel that bends logits, in the interpreter."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.softcap import triton_backend as kernels
from kinfolk_kernels.softcap.op import SoftcapArguments

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize("shape", [(1, 1), (3, 2049), (0, 7)])
@pytest.mark.parametrize("cap", [1.5, 30.0])
def test_equals_float64(numbers, shape, cap):
    logits = 20 * numbers(*shape)
    before = logits.clone()
    found = kernels.softcap(SoftcapArguments(cap, logits.device), logits)
    assert torch.equal(logits, before)
    exact = cap * (logits.double() / cap).tanh()
    # Near zero the error is some 2^-24 of the cap, not of the logit.
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=2e-7 * cap)


def test_what_is_no_number_stays_so():
    arguments = SoftcapArguments(30.0, torch.device("cpu"))
    found = kernels.softcap(arguments, torch.tensor([[-1e30, torch.nan, torch.inf]]))
    torch.testing.assert_close(found, torch.tensor([[-30, torch.nan, 30]]), equal_nan=True)


def test_the_interpreter_supports_any_device():
    assert kernels.supports(SoftcapArguments(30.0, torch.device("cpu")))
