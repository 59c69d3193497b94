"""The kernel that packs reports, against the reference."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.pack_outputs import triton_backend as kernel
from kinfolk_kernels.pack_outputs.reference import pack_outputs

pytestmark = pytest.mark.interpreter


def case(lanes, width, sequences, hidden, seed=0):
    generator = torch.Generator().manual_seed(seed)
    n, rows = lanes * width + 1, lanes * width + sequences

    def draw(high, *shape):
        return torch.randint(-1, high, shape, generator=generator)

    numbers = torch.randn(rows, hidden, generator=generator)
    numbers[::3, -1] = torch.nan
    numbers[1::7, 0] = -torch.inf
    return (
        numbers,
        draw(rows, sequences).clamp_min(0),
        torch.rand(n, generator=generator) < 0.8,
        draw(n, lanes, width),
        draw(width + 1, lanes),
        draw(10**6, lanes),
        draw(width, lanes, width),
    )


@pytest.mark.parametrize(("lanes", "width"), [(1, 1), (3, 1), (5, 7), (2, 64), (0, 1)])
@pytest.mark.parametrize(("sequences", "hidden"), [(1, 40), (6, 2048), (4, 2049)])
def test_equals_the_reference(lanes, width, sequences, hidden):
    arguments = case(lanes, width, sequences, hidden)
    assert kernel.supports(*arguments)
    expected = pack_outputs(*arguments)
    out = torch.full_like(expected, -12345)
    kernel.pack(*arguments, out).run()
    assert torch.equal(out, expected)
    assert torch.equal(kernel.pack_outputs(*arguments), expected)


def test_what_it_cannot_read_is_named():
    hidden, *rest = case(2, 3, 2, 40)
    assert "not contiguous numbers" in kernel.supports(hidden.double(), *rest).reason
    assert "not contiguous numbers" in kernel.supports(hidden.T, *rest).reason
    last, finite, rows, *others = rest
    assert "lanes" in kernel.supports(hidden, last, finite, rows.T, *others).reason
