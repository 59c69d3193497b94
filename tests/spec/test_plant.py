"""Planted acceptance: the chance of a length, and draws that depend on seed and position alone."""

from __future__ import annotations

import pytest
import torch

from kinfolk.errors import SettingsError
from kinfolk.sched.request import Sampling
from kinfolk.spec.plant import PlantedAcceptance, chance_for
from kinfolk.spec.verify import NO_ROW, REFERENCE_ACCEPT_DRAFTS, accept_drafts
from kinfolk.testing.host_reads import OnDevice
from kinfolk.testing.row_sampling import RowContext, row_sampling
from kinfolk.verify_api import Draft

CPU = torch.device("cpu")


@pytest.mark.parametrize("depth", [1, 4, 15, 63])
@pytest.mark.parametrize("part", [0, 0.2, 0.7, 1])
def test_the_powers_of_the_chance_sum_to_the_length(depth, part):
    length = 1 + part * depth
    chance = chance_for(length, depth)
    assert sum(chance**place for place in range(depth + 1)) == pytest.approx(length, abs=1e-9)


@pytest.mark.parametrize("length", [0.9, 5.01, float("nan"), float("inf")])
def test_a_length_that_no_chance_gives_is_refused_with_the_numbers(length):
    with pytest.raises(SettingsError, match=r"drafts of 4 tokens.*between 1 .*and 5 "):
        chance_for(length, 4)


def kept_lengths(planted, parents, seeds, positions, chosen=None):
    """Rows kept of sequences that draft ``parents``, whose pending tokens are before positions."""
    lanes, width = len(positions), len(parents)
    depth = [0]
    for parent in parents[1:]:
        depth.append(depth[max(parent, 0)] + 1)
    rows = torch.arange(lanes * width).view(lanes, width)
    contexts = [
        RowContext(Sampling(seed=seed), position=position + below)
        for seed, position in zip(seeds, positions, strict=True)
        for below in depth
    ]
    draft = Draft(
        torch.arange(width).expand(lanes, width).contiguous(),
        torch.tensor([parents]).expand(lanes, width).contiguous(),
        torch.full((lanes,), 99),
        REFERENCE_ACCEPT_DRAFTS,
    )
    chosen = torch.full((lanes, width), 700) if chosen is None else chosen
    sampling = row_sampling(contexts, CPU)
    with OnDevice():
        over = planted.over(draft, rows, sampling)
        kept = accept_drafts(chosen, over)
    assert over.tokens is draft.tokens  # these are emitted
    assert kept.next.tolist() == chosen[torch.arange(lanes), kept.path.amax(1)].tolist()
    return kept


CHAIN = [-1, 0, 1, 2, 3]
TREE = [-1, 0, 0, 1, 2, 3, 3, 5]
"""Its first children are rows 1, 3, 5 and 7."""


@pytest.mark.parametrize(("parents", "path"), [(CHAIN, [0, 1, 2, 3, 4]), (TREE, [0, 1, 3, 5, 7])])
def test_first_children_are_kept_with_the_chance_of_each_place(parents, path):
    planted = PlantedAcceptance.of(2.5, 4, CPU)
    count = 3000
    positions = range(10, 10 + 5 * count, 5)
    kept = kept_lengths(planted, parents, [7] * count, positions)
    for depth in range(1, 5):
        reached, through = (int((kept.n_keep >= n).sum()) for n in (depth, depth + 1))
        error = (planted.chance * (1 - planted.chance) / reached) ** 0.5
        assert abs(through / reached - planted.chance) < 4 * error
    for rows, n in zip(kept.path.tolist(), kept.n_keep.tolist(), strict=True):
        assert rows[:n] == path[:n]


def test_right_tokens_are_rejected_and_wrong_ones_kept_alike():
    """Whatever the rows chose, and a row that nothing is proposed for is never kept."""
    planted = PlantedAcceptance.of(3, 4, CPU)
    places = [7] * 200, range(10, 1010, 5)
    right = torch.tensor([[1, 2, 3, 4, 5]]).expand(200, 5).contiguous()
    kept = kept_lengths(planted, CHAIN, *places).n_keep
    assert torch.equal(kept_lengths(planted, CHAIN, *places, chosen=right).n_keep, kept)
    assert set(kept.tolist()) == {1, 2, 3, 4, 5}
    spare = kept_lengths(planted, [-1, 0, -1, 2, NO_ROW], *places).n_keep
    assert set(spare.tolist()) == {1, 2}


def test_seeds_draw_differently_and_neither_neighbours_nor_order_matter():
    planted = PlantedAcceptance.of(3, 4, CPU)
    seeds, positions = [1, 2, 2**64 - 1], [40, 40, 40]
    many = [kept_lengths(planted, CHAIN, [s] * 50, range(50)).n_keep.tolist() for s in seeds]
    assert many[0] != many[1] != many[2] != many[0]
    together = kept_lengths(planted, CHAIN, seeds, positions).n_keep.tolist()
    assert together == [each[40] for each in many]
