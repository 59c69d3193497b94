"""The kernel that accepts drafts, against the reference."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.accept_drafts import triton_backend as kernel
from kinfolk_kernels.accept_drafts.op import AcceptDraftsArguments, accept_drafts

CPU = AcceptDraftsArguments(torch.device("cpu"))

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize("most_rows", [2, 4, 13, 64])
@pytest.mark.parametrize("seed", range(4))
def test_equals_the_reference(drafted_sequences, seed, most_rows):
    given = drafted_sequences(seed, most_rows)
    expected = accept_drafts(CPU, *given)
    found = [torch.full_like(part, -12345) for part in expected]
    kernel.steps(*given, *found).run()
    for made, part, right in zip(kernel.accept_drafts(CPU, *given), found, expected, strict=True):
        assert torch.equal(part, right)
        assert torch.equal(made, right)


def test_the_interpreter_supports_any_device():
    assert kernel.supports(CPU)


def test_a_lane_of_one_row_keeps_it(drafted_sequences):
    given = drafted_sequences(0, 1)
    kept, expected = kernel.accept_drafts(CPU, *given), accept_drafts(CPU, *given)
    for part, right in zip(kept, expected, strict=True):
        assert torch.equal(part, right)


def test_a_chain_that_was_wanted_is_kept_whole():
    tokens = torch.arange(16)[None]
    path, n_keep, following = kernel.accept_drafts(
        CPU, tokens + 1, tokens, tokens - 1, torch.tensor([16])
    )
    assert torch.equal(path, tokens)
    assert (int(n_keep), int(following)) == (16, 16)
