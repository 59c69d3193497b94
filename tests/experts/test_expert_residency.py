"""Map, owners and records of experts under swaps and faults, against a plain model."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import HookValueError, StateError
from kinfolk.experts.records import RecordLayout, numbers
from kinfolk.experts.residency import ExpertResidency, check_budget
from kinfolk.experts.swaps import ExpertSwap, SwapQueue
from kinfolk.nn.moe import fetch_arguments
from kinfolk.plans import Placement
from kinfolk_kernels.fetch.op import fetch

pytestmark = pytest.mark.cpu
CPU = torch.device("cpu")
COUNT = 6


def residency(*bays, pinned=()):
    """Layers of six experts; every byte of the record of an expert is its number + 1."""
    layout = RecordLayout.of({"m": numbers(torch.uint8, (16, 16))})
    layers = dict.fromkeys(range(len(bays)), (layout, COUNT))
    made = ExpertResidency(layers, Placement(tuple(bays), pinned), CPU)
    for layer in made.layers.values():
        for expert in range(COUNT):
            if layer.far is not None:
                layer.far[expert] = expert + 1
        for bay, expert in enumerate(layer.placed):
            layer.near[bay] = expert + 1
    return made


def test_a_new_residency_is_whole():
    made = residency((4, 1), (), (0, 1, 2, 3, 4, 5))
    made.check_integrity()
    layers = made.layers
    assert layers[0].bay_of_expert.tolist() == [2, 1, 4, 5, 0, 7]
    assert layers[1].bay_of_expert.tolist() == [0, 1, 2, 3, 4, 5]
    assert layers[2].far is None
    assert made.host_bytes == 2 * COUNT * 256
    assert made.device_bytes == 8 * 256


step = st.one_of(
    st.tuples(st.just("swap"), st.integers(0, COUNT - 1), st.integers(0, 2)),
    st.tuples(st.just("fetch"), st.lists(st.integers(0, COUNT - 1), min_size=2, max_size=6)),
)


@given(steps=st.lists(step, max_size=12))
def test_swaps_and_fetches_keep_map_and_owners_inverse(steps):
    made = residency((5, 0, 3), pinned=(1,))
    layer = made.layers[0]
    owners = list(layer.placed)
    for kind, *rest in steps:
        if kind == "swap":
            expert, bay = rest
            if made.check_swap(0, expert, bay):
                assert bay == 0
                continue
            layer.swap(expert, bay)
            if expert not in owners:
                owners[bay] = expert
            assert layer.expert_of_bay.tolist() == owners
        else:
            ids = torch.tensor(rest[0])[:, None]
            rows = torch.tensor([len(rest[0])], dtype=torch.int32)
            fetch(fetch_arguments(layer, rows), ids)
            owners = layer.expert_of_bay.tolist()
        made.check_integrity()
        assert owners[0] == 5


def test_padding_rows_are_not_fetched_for():
    made = residency((0,))
    layer = made.layers[0]
    rows = torch.tensor([1], dtype=torch.int32)
    fetch(fetch_arguments(layer, rows), torch.tensor([[3], [4]]))
    assert layer.expert_of_bay.tolist() == [3]
    assert made.read(made.counts.tolist()) == (((0, 0, 0, 1, 0, 0),), (0, 1, 0))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda layer: layer.near[1].fill_(0xFF), "bay 1 differs from the home of expert 1"),
        (lambda layer: layer.bay_of_expert[4:5].fill_(1), "bay 0 belongs to expert 4"),
        (lambda layer: layer.expert_of_bay[1:2].fill_(-1), "expert 1 is in bay 1"),
        (lambda layer: layer.bay_of_expert[2:3].fill_(5), "expert 2 is in bay 5"),
    ],
)
def test_what_does_not_agree_is_found_and_mended(spoil, message):
    made = residency((4, 1))
    spoil(made.layers[0])
    with pytest.raises(StateError, match=message):
        made.check_integrity()
    made.restore()
    made.check_integrity()
    assert made.layers[0].expert_of_bay.tolist() == [4, 1]


def test_restoring_keeps_what_was_fetched():
    made = residency((4, 1))
    made.layers[0].swap(2, 0)
    made.layers[0].near[0] = 0xFF
    made.restore()
    made.check_integrity()
    assert made.layers[0].expert_of_bay.tolist() == [2, 1]


def test_a_placement_with_an_expert_in_two_bays_is_refused():
    with pytest.raises(HookValueError, match="layer 0 has expert 3 in bay 1"):
        residency((3, 3))


def test_a_placement_beyond_the_budget_is_refused_with_both_numbers():
    with pytest.raises(HookValueError, match="take 1000 bytes, the budget is 999"):
        check_budget(Placement(((0, 1), (), (2,))), {0: 400, 2: 200}, 999)


def queue():
    made = residency((4, 1), (0, 1, 2, 3, 4, 5), pinned=(1, 0))
    return SwapQueue(made.check_swap, lambda layer: 20 << 20)


def test_swaps_are_executed_a_few_in_each_step():
    waiting = queue()
    waiting.put([(0, 2, 1), (1, 3, 0)])
    assert waiting.take() == (ExpertSwap(0, 2, 1),)
    assert waiting.take() == (ExpertSwap(1, 3, 0),)
    assert waiting.take() == ()


@pytest.mark.parametrize(
    ("swaps", "message"),
    [
        ([(2, 0, 0)], "layer 2 has no experts"),
        ([(0, 6, 1)], "experts 0 to 5, not 6"),
        ([(0, 2, 0)], "first 1 keep their experts"),
        ([(0, 2, 2)], "bay 2"),
        ([(0, 2, 1), (0, 3, 1)], "bay 1 of layer 0 is named twice"),
        ([(1, 2, 1), (1, 2, 0)], "expert 2 of layer 1 is named twice"),
    ],
)
def test_an_impossible_swap_is_refused_and_none_is_queued(swaps, message):
    waiting = queue()
    with pytest.raises(HookValueError, match=message):
        waiting.put(swaps)
    assert waiting.take() == ()
