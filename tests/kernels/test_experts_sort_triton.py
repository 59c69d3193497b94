"""Sorting pairs by expert on the device, against a stable sort."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.experts.group_launches import FEW_PAIRS, GROUP_ROWS, Order, sort

pytestmark = pytest.mark.interpreter

MOST = torch.iinfo(torch.int32).max
"""The number of real rows until a step writes its own."""


def sorted_pairs(ids, experts, block, rows=None):
    order = Order(
        *(part.fill_(-12345) for part in Order.make(ids.numel(), experts, ids.device).parts)
    )
    for launch in sort(ids, order, block, rows):
        launch.run()
    return order


def expected(ids, experts, block):
    counts = ids.flatten().bincount(minlength=experts)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    ends = (-(-counts // block)).cumsum(0)
    return ids.flatten().argsort(stable=True), starts, ends


@pytest.mark.parametrize(
    ("rows", "top_k", "experts"),
    [
        (1, 1, 1), (1, 8, 256), (3, 5, 12), (17, 8, 128), (64, 8, 256), (65, 8, 100), (150, 8, 20),
        (512, 8, 256), (600, 8, 20),
    ],
)  # fmt: skip
@pytest.mark.parametrize("block", [16, 64])
def test_pairs_of_an_expert_lie_together_in_their_own_order(rows, top_k, experts, block):
    generator = torch.Generator().manual_seed(rows)
    scores = torch.rand(rows, experts, generator=generator)
    ids = scores.argsort(1)[:, :top_k].contiguous()
    found = sorted_pairs(ids, experts, block)
    for part, wanted in zip(found.parts, expected(ids, experts, block), strict=True):
        assert torch.equal(part.long(), wanted)


@pytest.mark.parametrize(
    ("rows", "real"), [(3, 2), (3, 0), (17, 20), (150, 101), (600, 301), (3, MOST), (70, MOST)]
)
def test_pairs_of_padding_rows_are_left_out(rows, real):
    ids = torch.randint(0, 20, (rows, 8), generator=torch.Generator().manual_seed(rows))
    wanted = expected(ids[:real], 20, 16)
    ids[real:] = 10**6
    found = sorted_pairs(ids, 20, 16, torch.tensor([real], dtype=torch.int32))
    sizes = (min(rows, real) * 8, 21, 20)
    for part, numbers, size in zip(found.parts, wanted, sizes, strict=True):
        assert torch.equal(part[:size].long(), numbers)
    assert bool((found.order[sizes[0] :] == -12345).all())


@pytest.mark.parametrize("rows", [FEW_PAIRS // 8 + 1, FEW_PAIRS, FEW_PAIRS + 1])
@pytest.mark.parametrize("crowd", ["one", "last"])
def test_all_pairs_may_have_the_same_expert(rows, crowd):
    ids = torch.full((rows, 1), 3 if crowd == "one" else 8)
    found = sorted_pairs(ids, 9, 64)
    for part, wanted in zip(found.parts, expected(ids, 9, 64), strict=True):
        assert torch.equal(part.long(), wanted)


def test_more_chunks_than_are_added_up_at_a_time():
    ids = torch.randint(0, 5, (34 * GROUP_ROWS, 1), generator=torch.Generator().manual_seed(1))
    found = sorted_pairs(ids, 5, 64)
    for part, wanted in zip(found.parts, expected(ids, 5, 64), strict=True):
        assert torch.equal(part.long(), wanted)


@pytest.mark.parametrize("seed", range(4))
def test_there_are_never_more_blocks_than_the_grid_has(seed):
    generator = torch.Generator().manual_seed(seed)
    rows, experts = 40 + 7 * seed, 30
    ids = torch.rand(rows, experts, generator=generator).pow(3).argsort(1)[:, :4].contiguous()
    found = sorted_pairs(ids, experts, 16)
    assert int(found.ends[-1]) <= found.blocks(16)
