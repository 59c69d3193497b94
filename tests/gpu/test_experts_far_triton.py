"""Experts in page-locked host memory, and their fetching, on the GPU."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from functools import partial

import pytest
import torch
from expert_layers import random_stack
from expert_records import RecordLayout, landing, planes_of, put, some, spread
from fetch_model import assert_follows, assert_lands, scenes
from hypothesis import given, settings

from kinfolk_kernels.experts import triton_backend as kernels
from kinfolk_kernels.experts.op import ExpertsArguments, FarExperts
from kinfolk_kernels.fetch import op as fetch_reference
from kinfolk_kernels.fetch import triton_backend as fetching
from kinfolk_kernels.fetch.op import FetchArguments
from kinfolk_kernels.fetch_experts import triton_backend as fused
from kinfolk_kernels.fetch_experts.op import FetchExpertsArguments
from kinfolk_kernels.land import triton_backend as landings
from kinfolk_kernels.planes import LAYOUTS
from kinfolk_kernels.route.op import RouteArguments
from kinfolk_kernels.route.triton_backend import route

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

TOP_K = 8

SHAPES = {
    "Q6_K": (48, 512, 2048, "Q4_K", "Q6_K", "silu"),
    "Q5_0": (32, 704, 2816, "Q4_K", "Q5_0", "gelu_tanh"),
}
"""Experts, channels, width, formats and activation of layers of released models, with fewer
experts."""


def random_layer(experts, channels, width, upper, lower, activation):
    torch.manual_seed(experts)
    gate, up = (random_stack(upper, experts, channels, width) for _ in range(2))
    down = random_stack(lower, experts, width, channels)
    bays = torch.randperm(experts, device="cuda")
    return ExpertsArguments(gate, up, down, bays, activation, TOP_K, torch.float16)


@pytest.fixture(scope="module", params=SHAPES)
def full(request):
    """A layer where every expert is in a near bay."""
    return random_layer(*SHAPES[request.param])


def random_rows(rows, layer):
    x = torch.randn(rows, layer.width, device="cuda").to(layer.dtype)
    ids = torch.rand(rows, layer.count, device="cuda").argsort(1)[:, :TOP_K].contiguous()
    return x, ids, torch.rand(rows, TOP_K, device="cuda")


def run(layer, operands):
    verdict = kernels.supports(layer)
    assert verdict, verdict.reason
    return kernels.experts(layer, *operands)


@pytest.mark.parametrize("rows", [1, 3, 7, 16, 32, 64, 600])
def test_where_an_expert_lies_changes_no_bit(full, rows):
    operands = random_rows(rows, full)
    expected = run(full, operands)
    count = full.count
    for bays in (0, 1, TOP_K - 1, TOP_K, count // 2, count - 1, count):
        layer = spread(full, some(count, bays, rows, empty=min(1, bays)), pin=True)
        for _ in range(2):
            assert torch.equal(run(layer, operands), expected), bays


@pytest.mark.parametrize("name", LAYOUTS)
def test_nor_in_any_format(name):
    full = random_layer(16, 768, 1024, name, name, "silu")
    layer = spread(full, some(16, 5, 1, empty=2), pin=True)
    for rows in (1, 3, 20, 40, 300):
        operands = random_rows(rows, full)
        assert torch.equal(run(layer, operands), run(full, operands)), rows


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_nor_in_plain_numbers(dtype):
    torch.manual_seed(0)

    def stack(*shape):
        return (torch.randn(shape, device="cuda") / shape[2] ** 0.5).to(dtype)

    stacks = stack(16, 128, 256), stack(16, 128, 256), stack(16, 256, 128)
    bays = torch.randperm(16, device="cuda")
    full = ExpertsArguments(*stacks, bays, "silu", TOP_K, dtype)
    layer = spread(full, some(16, 5, 1), pin=True)
    for rows in (1, 30, 400):
        operands = random_rows(rows, full)
        assert torch.equal(run(layer, operands), run(full, operands)), rows


@pytest.mark.parametrize("rows", [1, 5, 16, 40, 600])
def test_absent_experts_and_padding_rows_are_not_read(full, poisoned, rows):
    x, ids, weights = random_rows(rows, full)
    absent, real = list(range(0, full.count, 3)), rows - rows // 3
    without = torch.where(torch.isin(ids, torch.tensor(absent, device="cuda")), 0.0, weights)
    expected = run(full, (x, ids, without))
    ids[real:], weights[real:], x[real:] = 10**6, torch.nan, torch.nan
    layer = spread(full, some(full.count, 9, 2, empty=1), absent=absent, pin=True)
    layer = replace(layer, rows=torch.tensor([real], dtype=torch.int32, device="cuda"))
    with poisoned():
        found = run(layer, (x, ids, weights))
    assert torch.equal(found[:real], expected[:real])
    assert not found[real:].any()


def test_memory_that_the_driver_registered_is_read_too(full):
    """One mapping for all experts, registered once, as the loader makes it."""
    operands = random_rows(3, full)
    expected = run(full, operands)
    layout = RecordLayout.of((full.gate, full.up, full.down))
    arena = layout.arena(full.count)
    home = layout.stacks(arena)
    bays = full.bay_of_expert.tolist()
    for source, there in zip((full.gate, full.up, full.down), home, strict=True):
        for expert, bay in enumerate(bays):
            put(there, expert, source, bay)
    layer = spread(full, [3, None, 1], pin=True)
    pageable = replace(layer, far=FarExperts(*home))
    assert "not page-locked" in kernels.supports(pageable).reason
    driver, mapping = torch.cuda.cudart(), arena.untyped_storage()
    assert int(driver.cudaHostRegister(mapping.data_ptr(), mapping.nbytes(), 2)) == 0
    try:
        assert torch.equal(run(pageable, operands), expected)
        torch.cuda.synchronize()
    finally:
        assert int(driver.cudaHostUnregister(mapping.data_ptr())) == 0


@settings(max_examples=settings.default.max_examples * 4)
@given(scene=scenes(most_experts=40, most_rows=20))
def test_fetch_does_what_the_plain_model_does(scene):
    assert_follows(fetching.fetch, scene, "cuda")


@settings(max_examples=settings.default.max_examples * 4)
@given(scene=scenes(most_experts=40, most_rows=20))
def test_land_does_what_the_plain_model_does(scene):
    assert_lands(landings.land, scene, "cuda")


def lands_in_turn(layer, pin=True):
    """``layer`` with landing bays, which its experts come to before the products."""
    layer, brings = landing(layer, pin=pin)
    verdict = landings.supports(brings)
    assert verdict, verdict.reason

    def step(x, ids, weights):
        landings.land(brings, ids)
        return run(layer, (x, ids, weights))

    return step, brings


@pytest.mark.parametrize("rows", [16, 64, 600, 2048])
def test_experts_that_land_before_give_the_same_bits(full, rows):
    """Also where the layer before has used the same landing bays, without a wait of the host."""
    for bays in (0, TOP_K, full.count // 2, full.count - 1):
        layer = spread(full, some(full.count, bays, rows, empty=min(1, bays)), pin=True)
        step, brings = lands_in_turn(layer)
        several = [random_rows(rows, full) for _ in range(3)]
        expected = [run(full, operands) for operands in several]
        step(*several[0])  # compiles
        brings.landing.fill_(0xFF)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            found = [step(*operands) for operands in several]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True)), bays


@pytest.mark.parametrize("rows", [4, 16, 48, 512])
def test_a_graph_of_layers_that_land_in_the_same_bays_replays_the_bits(full, rows):
    """Two layers share landing bays and map, and replays follow each other without a wait."""
    layers, brings = [], []
    for seed in (1, 2):
        layer = spread(full, some(full.count, full.count // 2, seed), pin=True)
        layer = replace(layer, rows=torch.tensor([rows], dtype=torch.int32, device="cuda"))
        made, bring = landing(layer, pin=True)
        if layers:
            bring = replace(bring, landing=brings[0].landing, landed=brings[0].landed)
            made = replace(made, far=layers[0].far, bay_of_expert=layers[0].bay_of_expert)
        layers.append(made)
        brings.append(bring)
    x, ids, weights = random_rows(rows, full)

    def step():
        found = []
        for layer, bring in zip(layers, brings, strict=True):
            landings.land(bring, ids)
            found.append(kernels.experts(layer, x, ids, weights))
        return found

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        both = step()
    for turn in range(20):
        for layer in layers:
            layer.rows.fill_(rows if turn % 2 else rows - 1)
        for old, new in zip((x, ids, weights), random_rows(rows, full), strict=True):
            old.copy_(new)
        graph.replay()
        graph.replay()
        expected = run(replace(full, rows=layers[0].rows), (x, ids, weights))
        assert all(torch.equal(y, expected) for y in both), turn


def records(full, bays, pinned, seed):
    """A layer in records, and the arguments of the op that fetches its experts."""
    owners = some(full.count, bays, seed)
    layout = RecordLayout.of((full.gate, full.up, full.down))
    near, far = layout.arena(bays, device="cuda"), layout.arena(full.count, pin_memory=True)
    here, there = layout.stacks(near), layout.stacks(far)
    for source, home in zip((full.gate, full.up, full.down), there, strict=True):
        for expert, bay in enumerate(full.bay_of_expert.tolist()):
            put(home, expert, source, bay)
    bay_of = bays + torch.arange(full.count)
    for bay, owner in enumerate(owners):
        near[bay].copy_(far[owner])
        bay_of[owner] = bay
    layer = replace(
        full,
        **dict(zip(("gate", "up", "down"), here, strict=True)),
        far=FarExperts(*there),
        bay_of_expert=bay_of.cuda(),
        rows=torch.zeros(1, dtype=torch.int32, device="cuda"),
    )
    count = full.count
    fetch = FetchArguments(
        near,
        far,
        layer.bay_of_expert,
        torch.tensor(owners, dtype=torch.int32, device="cuda"),
        torch.zeros(count, device="cuda"),
        torch.zeros(count, dtype=torch.int64, device="cuda"),
        torch.zeros(3, dtype=torch.int64, device="cuda"),
        layer.rows,
        pinned,
    )
    return layer, fetch


def on_host(arguments):
    moved = {
        field.name: part.cpu().clone()
        for field in fields(arguments)
        if isinstance(part := getattr(arguments, field.name), torch.Tensor)
    }
    return replace(arguments, **moved)


def fetches_and_multiplies(way, layer, fetch):
    """What a step does with its choice: in the launches of two ops, or of one."""
    if way == "fused":
        both = FetchExpertsArguments(fetch, layer)
        assert fused.supports(both), fused.supports(both).reason
        return partial(fused.fetch_experts, both)
    assert fetching.supports(fetch), fetching.supports(fetch).reason

    def apart(x, ids, weights):
        fetching.fetch(fetch, ids)
        return kernels.experts(layer, x, ids, weights)

    return apart


@pytest.mark.parametrize(
    ("rows", "bays", "way"),
    [
        *((rows, bays, "apart") for rows in (1, 4, 16, 48, 512) for bays in (0, 9, 20)),
        *((1, bays, "fused") for bays in (10, 20, 31)),
    ],
)
def test_a_graph_of_route_fetch_and_experts_replays_the_bits_of_full_residency(
    full, rows, bays, way
):
    """Launches that begin early, on, and no wait for the host."""
    layer, fetch = records(full, bays, min(2, bays), rows)
    multiply = fetches_and_multiplies(way, layer, fetch)
    router = torch.randn(full.count, full.width, device="cuda") / full.width**0.5
    chooses = RouteArguments(router, "softmax", TOP_K, full.dtype)
    x = torch.randn(rows, full.width, device="cuda").to(full.dtype)
    ids_of_step = torch.zeros(rows, TOP_K, dtype=torch.int64, device="cuda")

    def step():
        ids, weights = route(chooses, x)
        ids_of_step.copy_(ids)
        return multiply(x, ids, weights)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step()
    expected_state = on_host(fetch)
    for seed in range(5):
        torch.manual_seed(seed)
        x.copy_(torch.randn(x.shape, device="cuda"))
        real = rows if seed % 2 else max(1, rows - 1)
        layer.rows.fill_(real)
        expected_state.rows.fill_(real)
        ids, weights = route(chooses, x)
        expected = run(replace(full, rows=layer.rows), (x, ids, weights))
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            graph.replay()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.equal(y, expected)
        assert torch.equal(ids_of_step, ids)
        fetch_reference.fetch(expected_state, ids.cpu())
        for name in ("bay_of_expert", "expert_of_bay", "score", "uses", "traffic", "near"):
            found = getattr(fetch, name).cpu()
            assert torch.equal(found, getattr(expected_state, name)), (seed, name)
    # A bay whose owner the step uses is not given away, and many rows use every expert.
    assert bays == 0 or rows * TOP_K >= full.count or int(fetch.traffic[1]) > 0


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("experts", [16, 300])
def test_a_product_that_fetches_gives_the_bits_in_every_format(name, experts):
    """Also with so many experts that another number of registers is compiled in."""
    full = random_layer(experts, 256, 512, name, name, "silu")
    layer, fetch = records(full, TOP_K + 2, 2, 1)
    layer.rows.fill_(1)
    multiply = fetches_and_multiplies("fused", layer, fetch)
    for _ in range(10):
        operands = random_rows(1, full)
        assert torch.equal(multiply(*operands), run(full, operands))
    near, far, owners = fetch.near.cpu(), fetch.far, fetch.expert_of_bay.tolist()
    assert torch.equal(near, far[owners])
    assert int(fetch.traffic[1]) > 0


@pytest.mark.parametrize("way", ["apart", "fused"])
def test_what_a_bay_held_before_is_not_seen_after_a_fetch(full, way):
    """The same bay gets another expert in each of many replays, right before it is read."""
    layer, fetch = records(full, TOP_K, 0, 1)
    multiply = fetches_and_multiplies(way, layer, fetch)
    layer.rows.fill_(1)
    x, _, weights = random_rows(1, full)
    ids = torch.zeros(1, TOP_K, dtype=torch.int64, device="cuda")

    multiply(x, ids, weights)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = multiply(x, ids, weights)
    for turn in range(200):
        ids.copy_(torch.randperm(full.count, device="cuda")[:TOP_K])
        graph.replay()
        assert torch.equal(y, run(replace(full, rows=layer.rows), (x, ids, weights))), turn


def test_copies_are_whole_for_records_of_every_length():
    """Lengths around the pieces in which programs copy; neighbours of a record stay as they are."""
    for words in (4, 64, 4096 - 4, 4096, 4096 + 64, 3 * 4096 + 20):
        far = torch.randint(0, 256, (5, 4 * words), dtype=torch.uint8).pin_memory()
        near = torch.full((4, 4 * words), 7, dtype=torch.uint8, device="cuda")
        made = FetchArguments(
            near[1:3],
            far,
            2 + torch.arange(5, device="cuda"),
            torch.full((2,), -1, dtype=torch.int32, device="cuda"),
            torch.zeros(5, device="cuda"),
            torch.zeros(5, dtype=torch.int64, device="cuda"),
            torch.zeros(3, dtype=torch.int64, device="cuda"),
            torch.ones(1, dtype=torch.int32, device="cuda"),
        )
        assert fetching.supports(made), fetching.supports(made).reason
        before = copy.copy(far)
        fetching.fetch(made, torch.tensor([[4, 1]], device="cuda"))
        assert torch.equal(near[1:3].cpu(), before[[1, 4]])
        assert bool((near[0] == 7).all())
        assert bool((near[3] == 7).all())


def test_planes_of_records_are_where_the_layout_says(full):
    """The test's own arenas: views of a record hold what was put there."""
    layout = RecordLayout.of((full.gate, full.up, full.down))
    stacks = layout.stacks(layout.arena(2, device="cuda"))
    for stack, source in zip(stacks, (full.gate, full.up, full.down), strict=True):
        put(stack, 1, source, 3)
        for name, plane in planes_of(stack).items():
            assert torch.equal(plane[1], planes_of(source)[name][3])
