"""The op ``fetch_experts`` as its reference defines it, on plain numbers."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.experts.op import ExpertsArguments, FarExperts, experts
from kinfolk_kernels.fetch.op import FetchArguments
from kinfolk_kernels.fetch_experts.op import FetchExpertsArguments, fetch_experts

pytestmark = pytest.mark.cpu

EXPERTS, BAYS, WIDTH, CHANNELS, TOP_K = 6, 3, 8, 4, 2
MATRIX = 4 * WIDTH * CHANNELS


def stacks(records):
    """Gate, up and down float32 as views of records uint8 [N, record]."""
    parts = [records[:, i * MATRIX : (i + 1) * MATRIX].view(torch.float32) for i in range(3)]
    shapes = (CHANNELS, WIDTH), (CHANNELS, WIDTH), (WIDTH, CHANNELS)
    return [part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)]


@pytest.mark.parametrize("rows", [1, 3])
def test_it_fetches_what_it_misses_and_then_multiplies(rows):
    generator = torch.Generator().manual_seed(rows)
    numbers = torch.randn(EXPERTS, 3 * MATRIX // 4, generator=generator)
    far = numbers.view(torch.uint8)
    near, where = far[:BAYS].clone(), torch.arange(EXPERTS)
    where[BAYS:] += BAYS
    real = torch.tensor([rows], dtype=torch.int32)
    layer = ExpertsArguments(
        *stacks(near), where, "silu", TOP_K, torch.float32, None, FarExperts(*stacks(far)), real
    )
    moves = FetchArguments(
        near,
        far,
        where,
        torch.arange(BAYS, dtype=torch.int32),
        torch.zeros(EXPERTS),
        torch.zeros(EXPERTS, dtype=torch.int64),
        torch.zeros(3, dtype=torch.int64),
        real,
    )
    x = torch.randn(rows, WIDTH, generator=generator)
    ids = torch.tensor([[5, 0]] * rows)
    weights = torch.rand(rows, TOP_K, generator=generator)
    full = ExpertsArguments(*stacks(far), torch.arange(EXPERTS), "silu", TOP_K, torch.float32)
    found = fetch_experts(FetchExpertsArguments(moves, layer), x, ids, weights)
    assert torch.equal(found, experts(full, x, ids, weights))
    # Expert 0 was near; expert 5 takes the bay of the one with the least score and id.
    assert where.tolist() == [0, BAYS + 1, 2, BAYS + 3, BAYS + 4, 1]
    assert moves.expert_of_bay.tolist() == [0, 5, 2]
    assert torch.equal(near[1], far[5])
    assert moves.traffic.tolist() == [1, 1, 0]
    assert moves.uses.tolist() == [rows, 0, 0, 0, 0, rows]
