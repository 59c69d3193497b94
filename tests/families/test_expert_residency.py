"""Every number of near bays, of every family with experts, against all experts near.

The kit samples these cases; here all of them run: ``pytest -m long tests/families``.
"""

from __future__ import annotations

import pytest
import torch

from kinfolk.plans import Placement
from kinfolk.testing.checks.experts import (
    BAY_COUNTS,
    assert_same_bits,
    placed,
    run_requests,
    script,
)
from kinfolk.testing.kit import Kit

FAMILIES = ("qwen35moe", "laguna", "gemma4")


@pytest.fixture(scope="module", params=FAMILIES)
def kit(request, tmp_path_factory) -> Kit:
    return Kit(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.long
@pytest.mark.parametrize("swap", [True, False])
@pytest.mark.parametrize("op", ["experts=torch", "experts=reference"])
@pytest.mark.parametrize("bays", BAY_COUNTS)
def test_any_number_of_bays_gives_the_same_bits(kit, bays, op, swap):
    for seed in range(3):
        assert_same_bits(kit, bays, seed, op=op, swap=swap)


@pytest.mark.long
def test_random_placements_give_the_same_bits(kit):
    for seed in range(40):
        assert_same_bits(kit, "random", seed)


@pytest.mark.long
def test_500_random_requests_at_20_percent_equal_the_full_run(kit):
    run_requests(kit, 500, "20%")


@pytest.mark.cpu
def test_a_home_that_is_spoiled_shows_in_the_logits(kit):
    """The comparison above can fail."""
    near = Placement(tuple(tuple(range(count)) for count in kit.config.experts))
    usual = placed(kit, near, records=False)
    other = placed(kit, Placement(tuple(() for _ in near.bays)))
    assert other.experts is not None
    for layer in other.experts.layers.values():
        layer.far.view(-1)[: layer.far.numel() // 2] = 0
    pairs = zip(script(kit, usual, False), script(kit, other, False), strict=True)
    assert any(not torch.equal(*pair) for pair in pairs)
