"""The product that fetches, against fetching first and against experts that are all near."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from expert_records import RecordLayout, put, some

from kinfolk_kernels.counters import counters
from kinfolk_kernels.experts import pair_launches as pair
from kinfolk_kernels.experts import triton_backend as experts
from kinfolk_kernels.experts.op import ExpertsArguments, FarExperts, SharedExpert
from kinfolk_kernels.fetch import triton_backend as fetch
from kinfolk_kernels.fetch.op import FETCHED, READ_FAR, FetchArguments
from kinfolk_kernels.fetch_experts import triton_backend as kernel
from kinfolk_kernels.fetch_experts.op import FetchExpertsArguments
from kinfolk_kernels.planes import LAYOUTS

pytestmark = pytest.mark.interpreter

EXPERTS, TOP_K = 12, 3


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch):
    """The interpreter's time for a program hardly depends on the work in that program."""
    monkeypatch.setattr(pair, "QUADS", 8)
    monkeypatch.setattr(pair, "DOWN_QUADS", 8)
    monkeypatch.setattr(fetch, "FETCH_PROGRAMS", 2)
    monkeypatch.setattr(kernel, "SLICE_WORDS", 128)


def stacks_of(made):
    return (made.gate, made.up, made.down)


@pytest.fixture
def layer(planes_stack):
    """``layer(owners, upper, lower)``: a layer whose near bays hold ``owners``, and the same with
    all experts near."""

    def make(
        owners,
        upper="Q4_0",
        lower="Q8_0",
        *,
        experts=EXPERTS,
        top_k=TOP_K,
        absent=(),
        pinned=0,
        shared=None,
    ):
        width, channels = (256 if LAYOUTS[name].block == 256 else 64 for name in (upper, lower))
        gate, up = (planes_stack(upper, experts, channels, width, seed) for seed in (1, 2))
        down = planes_stack(lower, experts, width, channels, 3)
        where = torch.arange(experts)
        where[list(absent)] = -1
        rows = torch.ones(1, dtype=torch.int32)
        full = ExpertsArguments(
            gate, up, down, where, "silu", top_k, torch.float16, shared, rows=rows
        )
        layout = RecordLayout.of((gate, up, down))
        far, near = layout.arena(experts), layout.arena(len(owners))
        for source, home, here in zip(
            stacks_of(full), layout.stacks(far), layout.stacks(near), strict=True
        ):
            for expert in range(experts):
                put(home, expert, source, expert)
            for bay, owner in enumerate(owners):
                if owner is not None:
                    put(here, bay, source, owner)
        bay_of = torch.where(where < 0, -1, where + len(owners))
        for bay, owner in enumerate(owners):
            if owner is not None:
                bay_of[owner] = bay
        gate, up, down = layout.stacks(near)
        made = replace(
            full,
            gate=gate,
            up=up,
            down=down,
            bay_of_expert=bay_of,
            far=FarExperts(*layout.stacks(far)),
        )
        moves = FetchArguments(
            near,
            far,
            bay_of,
            torch.tensor([-1 if each is None else each for each in owners], dtype=torch.int32),
            torch.rand(experts, generator=torch.Generator().manual_seed(9)),
            torch.zeros(experts, dtype=torch.int64),
            torch.zeros(3, dtype=torch.int64),
            rows,
            pinned,
            0.9,
        )
        return full, FetchExpertsArguments(moves, made)

    return make


def step(width, seed, rows=1, experts=EXPERTS, top_k=TOP_K):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, width, generator=generator).clamp(-4, 4).half()
    ids = torch.rand(rows, experts, generator=generator).argsort(1)[:, :top_k].contiguous()
    return x, ids, torch.rand(rows, top_k, generator=generator)


def state(made):
    fetch = made.fetch
    tensors = (fetch.near, fetch.bay_of_expert, fetch.expert_of_bay, fetch.score)
    return [tensor.clone() for tensor in (*tensors, fetch.uses, fetch.traffic)]


def assert_does_both(full, made, operands):
    """The state is that of ``fetch``, and the result that of a layer whose experts are all near,
    bit for bit."""
    assert kernel.supports(made), kernel.supports(made).reason
    before = state(made)
    found = kernel.fetch_experts(made, *operands)
    mine = state(made)
    for tensor, old in zip(tensors_of(made), before, strict=True):
        tensor.copy_(old)
    fetch.fetch(made.fetch, operands[1])
    for name, one, other in zip(STATE, mine, state(made), strict=True):
        assert torch.equal(one, other), name
    assert torch.equal(found, experts.experts(full, *operands))
    assert not counters(found.device).any()


STATE = ("near", "bay_of_expert", "expert_of_bay", "score", "uses", "traffic")


def tensors_of(made):
    return [getattr(made.fetch, name) for name in STATE]


@pytest.mark.parametrize("name", LAYOUTS)
def test_it_does_what_fetch_and_experts_do_in_every_format(layer, name):
    for upper, lower in ((name, "Q8_0"), ("Q4_0", name)):
        full, made = layer(some(EXPERTS, 5, 1, empty=1), upper, lower)
        assert_does_both(full, made, step(full.width, 0))
        assert made.fetch.traffic[FETCHED] > 0


@pytest.mark.parametrize(
    ("bays", "empty", "pinned"), [(TOP_K, 0, 0), (TOP_K, TOP_K, 0), (7, 2, 4), (EXPERTS, 0, 0)]
)
def test_so_it_does_with_any_bays_and_steps_after_each_other(layer, bays, empty, pinned):
    full, made = layer(some(EXPERTS, bays, bays, empty), pinned=pinned)
    for seed in range(4):
        assert_does_both(full, made, step(full.width, seed))
    assert made.fetch.traffic[READ_FAR] == 0


def test_absent_experts_are_neither_fetched_nor_missed(layer):
    full, made = layer([0, 1, 2, None], absent=[4, 5])
    for seed in range(4):
        assert_does_both(full, made, step(full.width, seed))


@pytest.mark.parametrize("known", [True, False])
def test_a_row_of_padding_fetches_nothing_and_follows_no_id(layer, known):
    full, made = layer(some(EXPERTS, 4, 2))
    made.fetch.rows.fill_(0)
    x, ids, weights = step(full.width, 1)
    before = dict(zip(STATE, state(made), strict=True))
    found = kernel.fetch_experts(made, x, ids if known else ids + 10**6, weights)
    assert not found.any()
    before["score"] *= made.fetch.decay
    for name, tensor in before.items():
        assert torch.equal(getattr(made.fetch, name), tensor), name


def test_parts_of_down_may_differ_in_length(layer, monkeypatch):
    """592 units of 16 bytes for 32 programs."""
    monkeypatch.setattr(pair, "QUADS", 2)
    full, made = layer(some(EXPERTS, 4, 1), "Q4_0", "Q4_K")
    down = kernel.place_in_record(made.fetch.near, made.experts.down)
    assert down.size // 16 % (full.channels // 4 // 2)
    assert_does_both(full, made, step(full.width, 1))


@pytest.mark.parametrize(("experts", "top_k", "bays"), [(40, 20, 25), (300, 3, 9)])
def test_many_experts_and_many_chosen_ones(layer, experts, top_k, bays):
    """Uses are counted in another way for more than 16 choices."""
    sizes = {"experts": experts, "top_k": top_k}
    full, made = layer(some(experts, bays, 1), **sizes)
    assert_does_both(full, made, step(full.width, 1, **sizes))
    assert made.fetch.traffic[FETCHED] > 0


@pytest.mark.parametrize("channels", [64, 256])
@pytest.mark.parametrize("gated", [True, False])
def test_a_shared_expert_is_one_more_pair(layer, random_planes, gated, channels):
    gate, up = (random_planes("Q8_0", channels, 64, seed) for seed in (4, 5))
    down = random_planes("Q8_0", 64, channels, 6)
    shared = SharedExpert(gate, up, down, torch.randn(64) if gated else None)
    full, made = layer(some(EXPERTS, 5, 3), shared=shared)
    assert_does_both(full, made, step(full.width, 0))


def test_an_expert_that_a_row_names_twice_comes_once(layer):
    """No router does that, but an op must end as it began: with its counter at zero."""
    full, made = layer([3, 4, 5, 6])
    x, _, weights = step(full.width, 1)
    assert_does_both(full, made, (x, torch.tensor([[0, 0, 3]]), weights))


def test_several_rows_fetch_before(layer):
    full, made = layer(some(EXPERTS, 6, 4))
    made.fetch.rows.fill_(2)
    assert_does_both(full, made, step(full.width, 1, rows=2))


def test_it_says_what_it_cannot(layer):
    _, made = layer(some(EXPERTS, 4, 1), pinned=2)
    reason = kernel.supports(made).reason
    assert "4 bays, of which 2 keep their experts, have no room for the 3 experts" in reason
    _, made = layer(some(EXPERTS, 4, 1))
    near = replace(made, experts=replace(made.experts, far=None))
    assert kernel.supports(near).reason == "all experts are near"
    one = replace(made, fetch=replace(made.fetch, score=made.fetch.score.double()))
    assert "score is torch.float64" in kernel.supports(one).reason
    wide = torch.zeros(4, made.fetch.near.shape[1] + 256, dtype=torch.uint8)
    home = torch.zeros(EXPERTS, wide.shape[1], dtype=torch.uint8)
    one = replace(made, fetch=replace(made.fetch, near=wide, far=home))
    assert kernel.supports(one).reason == "the matrices are not in the records"
    for name in ("rows", "bay_of_expert"):
        other = {name: getattr(made.fetch, name).clone()}
        one = replace(made, fetch=replace(made.fetch, **other))
        assert "another map, or another number of rows" in kernel.supports(one).reason
