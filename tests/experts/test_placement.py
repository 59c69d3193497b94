"""The default placement, and what the typed callers refuse, with the name of who answered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import HookValueError
from kinfolk.experts.placement import DefaultPlacement, place_by_frequency
from kinfolk.hooks import HookProvider, ModelHookCaller
from kinfolk.hookspecs import hookimpl
from kinfolk.plans import (
    ExpertResidency,
    ExpertStats,
    ExpertSwap,
    ExpertSwaps,
    ExpertUse,
    Placement,
)


def test_bays_go_to_the_experts_that_are_used_most():
    counts = ((100, 80, 60, 40), (100, 1, 1, 1))
    placed = place_by_frequency(ExpertStats((4, 4), counts, (1, 1)), 4)
    assert placed == Placement(((0, 1, 2), (0,)))


def test_of_equal_counts_the_smaller_record_gets_the_bay():
    stats = ExpertStats((2, 2), ((6, 6), (6, 6)), (3, 2))
    assert place_by_frequency(stats, 4).bays == ((), (0, 1))
    # After two small records a large one no longer fits, and nothing else does.
    assert place_by_frequency(stats, 6).bays == ((), (0, 1))
    assert place_by_frequency(stats, 7).bays == ((0,), (0, 1))


def test_a_record_that_does_not_fit_leaves_its_bytes_to_others():
    stats = ExpertStats((1, 2), ((100,), (1, 2)), (10, 3))
    assert place_by_frequency(stats, 9).bays == ((), (0, 1))


def test_without_a_profile_the_layers_have_equal_numbers_of_bays():
    placed = place_by_frequency(ExpertStats((8, 0, 8, 8), None, (5, 0, 5, 5)), 5 * 11)
    assert [len(row) for row in placed.bays] == [4, 0, 4, 3]
    assert placed.bays[0] == (0, 1, 2, 3)


@st.composite
def models(draw):
    layers = tuple(draw(st.lists(st.integers(0, 6), min_size=1, max_size=5)))
    sizes = tuple(draw(st.integers(1, 9)) for _ in layers)
    counts = tuple(tuple(draw(st.integers(0, 5)) for _ in range(n)) for n in layers)
    return ExpertStats(layers, draw(st.sampled_from([None, counts])), sizes)


@given(models(), st.integers(0, 200))
def test_a_placement_passes_the_checks_and_leaves_no_room_for_another_record(stats, budget):
    caller = ModelHookCaller(HookProvider("family 'f'", DefaultPlacement()), [])
    placed = caller.place_experts(stats, budget)
    used = sum(len(row) * size for row, size in zip(placed.bays, stats.nbytes, strict=True))
    full = [len(row) == n for row, n in zip(placed.bays, stats.layers, strict=True)]
    assert all(done or used + size > budget for done, size in zip(full, stats.nbytes, strict=True))
    assert all(list(row) == sorted(row) for row in placed.bays)
    if all(full):
        assert placed.bays == tuple(tuple(range(n)) for n in stats.layers)


class Answers:
    def __init__(self, answer):
        self.answer = answer

    @hookimpl
    def place_experts(self):
        return self.answer

    @hookimpl
    def swap_experts(self):
        return self.answer


def caller_with(answer):
    policy = HookProvider("policy 'p'", Answers(answer))
    return ModelHookCaller(HookProvider("family 'f'", object()), [], [policy])


@pytest.mark.parametrize(
    ("placement", "problem"),
    [
        (Placement(((0,),)), "bays for 1 layers, the model has 2"),
        (Placement(((0, 4), ())), "layer 0 has expert 4 in bay 1, but the layer's 4 experts"),
        (Placement(((), (-1,))), "layer 1 has expert -1 in bay 0"),
        (Placement(((), (1, 2, 1))), "layer 1 has expert 1 in bay 2"),
        (Placement(((0, 1), (0, 1))), "the records in bays have 10 bytes, the budget is 9"),
        (Placement(((0,), ()), (1,)), "pinned bays for 1 layers, the model has 2"),
        (Placement(((0,), ()), (2, 0)), "layer 0 has 2 pinned bays of 1"),
        (Placement(((0,), ()), (-1, 0)), "layer 0 has -1 pinned bays of 1"),
    ],
)
def test_a_placement_that_cannot_be_used_names_the_policy(placement, problem):
    with pytest.raises(HookValueError, match=f"hook place_experts: {problem}.*policy 'p'"):
        caller_with(placement).place_experts(ExpertStats((4, 4), None, (2, 3)), 9)


def test_where_all_experts_fit_each_has_a_bay():
    """Nothing is planned for homes then."""
    stats = ExpertStats((4, 4), None, (2, 3))
    problem = "layer 1 has bays for 3 of 4 experts, but the budget holds those of all layers"
    with pytest.raises(HookValueError, match=f"hook place_experts: {problem}.*policy 'p'"):
        caller_with(Placement((tuple(range(4)), (0, 1, 2)))).place_experts(stats, 20)


def test_as_many_bytes_and_pinned_bays_as_there_are_is_a_placement():
    placement = Placement(((0, 1), (3,)), (2, 1))
    answer = caller_with(placement).place_experts(ExpertStats((4, 4), None, (3, 3)), 9)
    assert answer == placement


USE = ExpertUse(64, ((9, 0, 1, 0), (0, 0, 0, 10)), ((5, 5, 0), (10, 0, 0)))
RESIDENCY = ExpertResidency((4, 4), ((0, 1, 2), (3,)), (1, 0), (2, 3))


@pytest.mark.parametrize(
    ("swaps", "problem"),
    [
        ([(2, 0, 0)], "a swap in layer 2, the model has 2"),
        ([(-1, 0, 0)], "a swap in layer -1, the model has 2"),
        ([(0, 4, 1)], "layer 0: expert 4 takes bay 1, but the layer's 4 experts"),
        ([(0, -1, 1)], "layer 0: expert -1 takes bay 1, but the layer's 4 experts"),
        ([(1, 0, 1)], "layer 1: expert 0 takes bay 1, but the layer's 1 near bays"),
        ([(1, 0, -1)], "layer 1: expert 0 takes bay -1, but the layer's 1 near bays"),
        ([(0, 3, 0)], "layer 0: expert 3 takes bay 0, but the first 1 bays are pinned"),
        ([(0, 3, 1), (0, 1, 1)], "another swap takes that bay"),
        ([(0, 3, 1), (0, 3, 2)], "another swap moves that expert"),
    ],
)
def test_swaps_that_cannot_be_executed_name_the_policy(swaps, problem):
    answer = ExpertSwaps(tuple(ExpertSwap(*swap) for swap in swaps))
    with pytest.raises(HookValueError, match=f"hook swap_experts: .*{problem}.*policy 'p'"):
        caller_with(answer).swap_experts(USE, RESIDENCY)


def test_swaps_of_other_bays_and_of_an_expert_that_is_near_are_answers():
    answer = ExpertSwaps((ExpertSwap(0, 3, 2), ExpertSwap(0, 1, 1), ExpertSwap(1, 3, 0)))
    assert caller_with(answer).swap_experts(USE, RESIDENCY) == answer


def test_another_type_than_swaps_names_the_policy():
    with pytest.raises(HookValueError, match=r"'p' returned .* no kinfolk\.plans\.ExpertSwaps"):
        caller_with([(0, 3, 2)]).swap_experts(USE, RESIDENCY)


def test_by_default_nothing_is_swapped():
    caller = ModelHookCaller(HookProvider("family 'f'", DefaultPlacement()), [])
    assert caller.swap_experts(USE, RESIDENCY) == ExpertSwaps()
