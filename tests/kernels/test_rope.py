"""Rotary embedding, against multiplication of complex numbers."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.qk_rope_write.rope import rope

F32 = (3e-7, 3e-6)
"""Three roundings of float32: two products and their sum."""


def tables(context, pairs, base=1e4):
    angle = base ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    turns = torch.arange(context, dtype=torch.float64)[:, None] * angle
    return turns.cos().float(), turns.sin().float()


def exact(x, positions, cos, sin):
    n = cos.shape[1]
    turn = torch.complex(cos.double(), sin.double())[positions][:, None]
    pairs = torch.complex(x[..., :n].double(), x[..., n : 2 * n].double()) * turn
    return torch.cat([pairs.real, pairs.imag, x[..., 2 * n :].double()], -1)


@pytest.mark.parametrize(
    ("rows", "heads", "dim", "pairs"),
    [(1, 1, 2, 1), (63, 3, 16, 4), (65, 2, 10, 5), (7, 6, 256, 32)],
)
def test_equals_complex_rotation(numbers, assert_near, rows, heads, dim, pairs):
    cos, sin = tables(200, pairs)
    x = numbers(rows, heads, dim)
    positions = torch.randint(0, 200, (rows,), generator=torch.Generator().manual_seed(1))
    assert_near(rope(x, positions, cos, sin), exact(x, positions, cos, sin), F32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dimensions_beyond_the_pairs_pass_through(numbers, dtype):
    x = numbers(5, 2, 24).to(dtype)
    found = rope(x, torch.arange(5), *tables(5, 4))
    assert found.dtype == dtype
    assert torch.equal(found[..., 8:], x[..., 8:])
    assert not torch.equal(found[1:, :, :8], x[1:, :, :8])


def test_position_zero_changes_nothing(numbers):
    x = numbers(3, 2, 8)
    assert torch.equal(rope(x, torch.zeros(3, dtype=torch.int64), *tables(4, 4)), x)


def test_scores_depend_on_the_distance_alone(numbers):
    q, k = numbers(1, 1, 32), numbers(1, 1, 32)
    cos, sin = tables(300, 16)

    def score(m, n):
        turned = (rope(x, torch.tensor([p]), cos, sin).double() for x, p in ((q, m), (k, n)))
        return float(torch.mul(*turned).sum())

    size = float(q.norm() * k.norm())
    assert abs(score(3, 10) - score(203, 210)) < 1e-5 * size
    assert abs(score(3, 10) - score(3, 11)) > 1e-3 * size


def test_the_factor_on_cosine_and_sine_scales_rotated_dimensions_only(numbers):
    x, (cos, sin) = numbers(2, 1, 8), tables(2, 2)
    plain, scaled = (rope(x, torch.arange(2), m * cos, m * sin) for m in (1, 2))
    assert torch.equal(scaled[..., :4], 2 * plain[..., :4])
    assert torch.equal(scaled[..., 4:], plain[..., 4:])
