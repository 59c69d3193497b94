"""The kernel that packs the outputs of a step, against the reference."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.pack_outputs import triton_backend as kernel
from kinfolk_kernels.pack_outputs.op import PackOutputsArguments, pack_outputs

CPU = PackOutputsArguments(torch.device("cpu"))

pytestmark = pytest.mark.interpreter


def spans_of(last):
    """Sequences whose last rows are ``last`` int64 [B]; every other one begins before it."""
    count = 1 + torch.arange(len(last)) % 2
    count = torch.minimum(count, last + 1)
    return torch.stack((last - count + 1, count, last, torch.zeros_like(last)), 1).int()


def case(sampled, width, sequences, hidden, seed=0):
    generator = torch.Generator().manual_seed(seed)
    n, rows = sampled * width + 1, sampled * width + sequences

    def draw(high, *shape):
        return torch.randint(-1, high, shape, generator=generator)

    numbers = torch.randn(rows, hidden, generator=generator)
    numbers[::3, -1] = torch.nan
    numbers[1::7, 0] = -torch.inf
    return (
        numbers,
        spans_of(draw(rows, sequences).clamp_min(0)),
        torch.rand(n, generator=generator) < 0.8,
        draw(n, sampled, width),
        draw(10**6, sampled, width),
        draw(width + 1, sampled),
        draw(10**6, sampled),
        draw(width, sampled, width),
    )


@pytest.mark.parametrize(("sampled", "width"), [(1, 1), (3, 1), (5, 7), (2, 64), (0, 1)])
@pytest.mark.parametrize(("sequences", "hidden"), [(1, 40), (6, 2048), (4, 2049)])
def test_equals_the_reference(sampled, width, sequences, hidden):
    arguments = case(sampled, width, sequences, hidden)
    assert kernel.supports(CPU)
    expected = pack_outputs(CPU, *arguments)
    out = torch.full_like(expected, -12345)
    kernel.pack(*arguments, out).run()
    assert torch.equal(out, expected)
    assert torch.equal(kernel.pack_outputs(CPU, *arguments), expected)


def test_nothing_behind_a_path_is_read():
    """Of a count that is larger than the path is wide."""
    *most, tokens, kept, following, path = case(2, 3, 2, 40)
    longer = torch.full((3, 3), 10**9)
    longer[:2] = path
    arguments = (*most, tokens, torch.full_like(kept, 4), following, longer[:2])
    assert torch.equal(kernel.pack_outputs(CPU, *arguments), pack_outputs(CPU, *arguments))


def test_a_sequence_without_rows_is_padding():
    hidden, spans, *rest = case(2, 3, 2, 40)
    padded = torch.cat([spans, spans.new_zeros(1, 4)])
    outputs = kernel.pack_outputs(CPU, hidden, padded, *rest)
    expected = pack_outputs(CPU, hidden, spans, *rest)
    assert torch.equal(torch.cat([outputs[:2], outputs[3:]]), expected)
