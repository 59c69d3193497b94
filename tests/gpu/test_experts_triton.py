"""Router and experts on the GPU, in the shapes of released models.

Float64 takes numbers of the quantised matrices one expert at a time, and a sample of rows of many.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from expert_layers import random_stack

from kinfolk_kernels.experts import triton_backend as kernels
from kinfolk_kernels.experts.choice import Choice
from kinfolk_kernels.experts.group_launches import group_launches
from kinfolk_kernels.experts.int8_group_launches import int8_group_launches
from kinfolk_kernels.experts.mma_group_launches import mma_group_launches
from kinfolk_kernels.experts.op import ExpertsArguments, SharedExpert
from kinfolk_kernels.experts.pair_launches import pair_launches
from kinfolk_kernels.int8_rows import dequantize
from kinfolk_kernels.linear.prepare import int8_rows
from kinfolk_kernels.planes import LAYOUTS, unpack
from kinfolk_kernels.route.op import RouteArguments
from kinfolk_kernels.route.op import choice as choice_by
from kinfolk_kernels.route.triton_backend import choose, empty_parts, logits_of_many
from kinfolk_kernels.route.triton_backend import route as route_on_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]

TOP_K = 8
SAMPLE = 5
"""Rows that are compared, of many."""

FLIPS = (6e-3, 5e-2)
"""Rows in int8: what is between the products may round to the next of 255 steps."""

HALF = (4e-3, 3e-2)
"""Weights, rows and what is between the products as float16."""

SHAPES = {
    "256 of 512, Q6_K": (256, 512, 2048, "Q4_K", "Q6_K", "silu"),
    "128 of 704, Q5_0": (128, 704, 2816, "Q4_K", "Q5_0", "gelu_tanh"),
    "128 of 704, Q8_0": (128, 704, 2816, "Q4_K", "Q8_0", "gelu_tanh"),
}


def random_layer(experts, channels, width, upper, lower, activation):
    """Gate and up as views of one stack; experts in bays in some order."""
    torch.manual_seed(experts)
    both = random_stack(upper, experts, 2 * channels, width)
    gate, up = both.part(0, channels), both.part(channels, 2 * channels)
    bays = torch.randperm(experts, device="cuda")
    down = random_stack(lower, experts, width, channels)
    return ExpertsArguments(gate, up, down, bays, activation, TOP_K, torch.float16)


@pytest.fixture(scope="module", params=SHAPES)
def layer(request):
    return random_layer(*SHAPES[request.param])


def random_rows(rows, layer):
    x = torch.randn(rows, layer.width, device="cuda").half()
    ids = torch.rand(rows, layer.count, device="cuda").argsort(1)[:, :TOP_K].contiguous()
    return x, Choice(ids, torch.rand(rows, TOP_K, device="cuda"))


def as_int8(x):
    """A row as the kernel before the products rounds it: a number of x that lies between two steps
    and goes to the other one changes what comes out by 3e-3."""
    return dequantize(int8_rows(x[None])).double()[0]


def as_lanes(name):
    """Rounds a row to int8 with a scale for what a lane holds of 16 words: every second, in formats
    of eight bits every fourth."""
    step = 4 if name == "Q8_0" else 2

    def rounded(numbers):
        words = numbers.float().reshape(-1, 16 // step, step, 4)
        scale = words.abs().amax((1, 3), keepdim=True) / 127
        inverse = torch.where(scale > 0, 1 / scale, 0)
        return ((words * inverse).round() * scale).double().view_as(numbers)

    return rounded


def as_numbers(x):
    return x.double()


def exact(x, choice, layer, rows, rounded=as_numbers, between=as_numbers):
    """Some rows in float64; ``rounded`` changes them, ``between`` the last matrix's input."""
    out = torch.zeros(len(rows), layer.width, dtype=torch.float64, device="cuda")
    for i, row in enumerate(rows):
        mine = rounded(x[row])
        for expert, share in zip(choice.ids[row].tolist(), choice.weights[row], strict=True):
            bay = int(layer.bay_of_expert[expert])
            gate, up, down = (unpack(s[bay]).double() for s in (layer.gate, layer.up, layer.down))
            curved = gate @ mine
            if layer.activation == "silu":
                curved = torch.nn.functional.silu(curved)
            else:
                curved = torch.nn.functional.gelu(curved, approximate="tanh")
            out[i] += share.double() * (down @ between(curved * (up @ mine)))
    return out


def sample(rows):
    return sorted({round(i * (rows - 1) / (SAMPLE - 1)) for i in range(SAMPLE)})


def computed(launches, x, poisoned):
    """The result of launches that write into ``y``, which is NaN before."""
    with poisoned():
        y = torch.empty(x.shape, dtype=torch.float32, device="cuda")
        for launch in launches(y):
            launch.run()
    return y


@pytest.mark.parametrize("rows", [1, 2, 4, 16, 32])
def test_rows_alone(layer, poisoned, assert_near, rows):
    x, choice = random_rows(rows, layer)
    y = computed(lambda y: pair_launches(x, choice, layer, y), x, poisoned)
    mine = sample(rows)
    expected = exact(x, choice, layer, mine, as_int8, as_lanes(layer.down.format))
    assert_near(y[mine], expected, FLIPS)


@pytest.mark.parametrize("eights", [1, 2, 3, 4])
@pytest.mark.parametrize("rows", [2, 16, 33, 100, 512])
def test_rows_of_an_expert_in_int8(layer, poisoned, assert_near, rows, eights):
    x, choice = random_rows(rows, layer)
    y = computed(lambda y: int8_group_launches(x, choice, layer, y, eights=eights), x, poisoned)
    mine = sample(rows)
    assert y.isfinite().all()
    assert_near(y[mine], exact(x, choice, layer, mine, as_int8, as_int8), FLIPS)


@pytest.mark.parametrize("rows", [1, 5, 16, 33, 64, 65, 700, 2048])
def test_rows_of_an_expert_together(layer, poisoned, assert_near, rows):
    x, choice = random_rows(rows, layer)
    y = computed(lambda y: group_launches(x, choice, layer, y), x, poisoned)
    mine = sample(rows)
    assert y.isfinite().all()
    assert_near(y[mine], exact(x, choice, layer, mine), HALF)


@pytest.mark.parametrize("rows", [65, 513, 700, 2048, 3000])
def test_rows_of_an_expert_by_warpgroups(layer, poisoned, assert_near, rows):
    x, choice = random_rows(rows, layer)
    y = computed(lambda y: mma_group_launches(x, choice, layer, y), x, poisoned)
    mine = sample(rows)
    assert y.isfinite().all()
    assert_near(y[mine], exact(x, choice, layer, mine), HALF)
    for _ in range(3):
        assert torch.equal(
            computed(lambda y: mma_group_launches(x, choice, layer, y), x, poisoned), y
        )


@pytest.mark.parametrize("counts", [(700, 0, 3, 0), (128, 129, 0, 1), (2000, 48, 0, 0)])
def test_warpgroups_share_an_expert_of_many_rows(poisoned, assert_near, counts):
    """Of few experts, with one expert a row."""
    layer = random_layer(4, 512, 1024, "Q4_K", "Q6_K", "silu")
    ids = torch.repeat_interleave(torch.arange(4, device="cuda"), torch.tensor(counts).cuda())
    x = torch.randn(len(ids), layer.width, device="cuda").half()
    choice = Choice(
        ids[torch.randperm(len(ids), device="cuda")][:, None], torch.ones(len(ids), 1).cuda()
    )
    y = computed(lambda y: mma_group_launches(x, choice, layer, y), x, poisoned)
    mine = sample(len(ids))
    assert_near(y[mine], exact(x, choice, layer, mine), HALF)


@pytest.mark.parametrize("rows", [40, 300])
def test_everybody_may_want_the_same_experts(layer, poisoned, assert_near, rows):
    x, choice = random_rows(rows, layer)
    choice.ids[:] = choice.ids[0].clone()
    y = computed(lambda y: group_launches(x, choice, layer, y), x, poisoned)
    mine = sample(rows)
    assert_near(y[mine], exact(x, choice, layer, mine), HALF)


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_format(poisoned, assert_near, name):
    made = random_layer(16, 768, 1024, name, name, "silu")
    for rows, launches, bound in ((3, pair_launches, FLIPS), (20, group_launches, HALF)):
        x, choice = random_rows(rows, made)
        y = computed(lambda y, f=launches: f(x, choice, made, y), x, poisoned)  # noqa: B023
        rounded = {"rounded": as_int8, "between": as_lanes(name)} if rows == 3 else {}
        assert_near(y[:2], exact(x, choice, made, [0, 1], **rounded), bound)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 30, 400])
def test_plain_numbers(assert_near, dtype, rows):
    torch.manual_seed(rows)

    def stack(*shape):
        return (torch.randn(shape, device="cuda") / shape[2] ** 0.5).to(dtype)

    gate, up, down = stack(32, 512, 2048), stack(32, 512, 2048), stack(32, 2048, 512)
    bays = torch.randperm(32, device="cuda")
    arguments = ExpertsArguments(gate, up, down, bays, "silu", TOP_K, dtype)
    x, choice = random_rows(rows, arguments)
    x = x.to(dtype)
    assert kernels.supports(arguments)
    y = run(x, choice, arguments)
    for row in sample(rows):
        chosen = bays[choice.ids[row]]
        mine, (g, u, d) = x[row].double(), (s[chosen].double() for s in (gate, up, down))
        inner = torch.nn.functional.silu(g @ mine) * (u @ mine)
        wanted = (choice.weights[row].double()[:, None] * (d @ inner[..., None])[..., 0]).sum(0)
        bound = HALF if dtype == torch.float16 else (2e-2, 0.1)
        assert_near(y[row : row + 1], wanted[None], bound)


@pytest.mark.parametrize("rows", [1, 4, 16, 24, 33, 64, 65, 300])
def test_neighbours_and_bays_change_no_bit_and_neither_do_other_runs(layer, rows):
    x, choice = random_rows(rows, layer)
    first = run(x, choice, layer)
    for _ in range(8):
        assert torch.equal(run(x, choice, layer), first)
    place = rows // 2
    others, moved = random_rows(rows, layer)
    there = (place + 3) % rows
    others[there] = x[place]
    moved.ids[there], moved.weights[there] = choice.ids[place], choice.weights[place]
    assert torch.equal(run(others, moved, layer)[there], first[place])
    order = torch.randperm(layer.count, device="cuda")
    place_of = layer.bay_of_expert[order]
    gate, up, down = (stack.select(place_of) for stack in (layer.gate, layer.up, layer.down))
    again = replace(layer, gate=gate, up=up, down=down, bay_of_expert=order.argsort())
    assert torch.equal(run(x, choice, again), first)


def run(x, choice, layer):
    return kernels.experts(layer, x, choice.ids, choice.weights)


@pytest.mark.parametrize("rows", [1, 4, 16, 64, 2048])
def test_a_graph_replays_the_bits_of_a_plain_run_with_other_rows(layer, rows):
    x, _ = random_rows(rows, layer)
    router = torch.randn(layer.count, layer.width, device="cuda") / layer.width**0.5

    arguments = RouteArguments(router, "softmax", TOP_K, x.dtype)

    def step():
        ids, weights = route_on_gpu(arguments, x)
        return run(x, Choice(ids, weights), layer)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step()
    for seed in range(3):
        torch.manual_seed(seed)
        x.copy_(torch.randn(x.shape, device="cuda"))
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            graph.replay()
            plain = step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert torch.equal(y, plain)


def test_activations_decide_how_few_rows_are_rounded(layer, assert_near):
    x, choice = random_rows(4, layer)
    stacks = {"gate": layer.gate, "up": layer.up, "down": layer.down}
    exact_stacks = {name: replace(stack, activations="f16") for name, stack in stacks.items()}
    found = run(x, choice, replace(layer, **exact_stacks))
    assert_near(found, exact(x, choice, layer, range(4)), HALF)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("experts", "width"), [(128, 2816), (256, 2048)])
@pytest.mark.parametrize("rows", [1, 3, 16, 32, 33])
def test_products_and_choice(rows, experts, width, dtype):
    torch.manual_seed(rows)
    weight = torch.randn(experts, width, device="cuda") / width**0.5
    for _ in range(3):
        x = torch.randn(rows, width, device="cuda").to(dtype)
        ids, weights = route_on_gpu(RouteArguments(weight, "softmax", TOP_K, dtype), x)
        logits = x.double() @ weight.double().T
        scores = logits.softmax(1).gather(1, ids)
        # Each chosen expert is at most a rounding worse than the best eight.
        best = logits.softmax(1).topk(TOP_K, 1).values
        torch.testing.assert_close(scores, best, rtol=1e-4, atol=0)
        assert all(len(set(row)) == TOP_K for row in ids.tolist())
        shares = scores / scores.sum(1, keepdim=True)
        torch.testing.assert_close(weights.double(), shares, rtol=1e-4, atol=0)


@pytest.mark.parametrize(
    ("upper", "lower", "gated"), [("Q8_0", "Q8_0", True), ("Q4_K", "Q6_K", False)]
)
@pytest.mark.parametrize("rows", [1, 4, 16, 24, 40])
def test_the_shared_expert(assert_near, upper, lower, gated, rows):
    layer = random_layer(*SHAPES["256 of 512, Q6_K"])
    x, choice = random_rows(rows, layer)
    gate, up = (random_stack(upper, 1, 512, 2048)[0] for _ in range(2))
    shared_gate = torch.randn(2048, device="cuda") / 2048**0.5 if gated else None
    shared = SharedExpert(gate, up, random_stack(lower, 1, 2048, 512)[0], shared_gate)
    found, alone = (run(x, choice, made) for made in (replace(layer, shared=shared), layer))
    wide = x.double()
    if rows <= kernels.PAIRED_ROWS:
        wide = torch.stack([as_int8(row) for row in x])
    inner = wide @ unpack(gate).double().T
    inner = torch.nn.functional.silu(inner) * (wide @ unpack(up).double().T)
    added = inner @ unpack(shared.down).double().T
    if gated:
        added = added * (x.double() @ shared_gate.double()).sigmoid()[:, None]
    # The values between the products are rounded to int8 or bfloat16's eight bits.
    assert_near(found - alone, added, (2e-2, 0.15))


@pytest.mark.parametrize(
    ("rows", "experts", "width"), [(65, 12, 72), (2048, 256, 2048), (300, 128, 2816)]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_logits_of_many_rows_are_those_of_float32(rows, experts, width, dtype):
    torch.manual_seed(rows)
    x = torch.randn(rows, width, device="cuda").to(dtype)
    weight = torch.randn(experts, width, device="cuda") / width**0.5
    logits = empty_parts(rows, width, experts, x.device).fill_(torch.nan)
    logits_of_many(x, weight, logits).run()
    exact = x.double() @ weight.double().T
    own = (x.float() @ weight.T - exact).abs().max()
    assert float((logits.sum(0) - exact).abs().max()) <= max(4 * float(own), 5e-6)
    for fewer in (17, rows - 7):
        again = empty_parts(fewer, width, experts, x.device).fill_(torch.nan)
        logits_of_many(x[7 : 7 + fewer], weight, again).run()
        assert torch.equal(again, logits[:, 7 : 7 + fewer]), "a row does not see the others"


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("experts", [128, 256])
@pytest.mark.parametrize("rows", [1, 16, 2048])
def test_the_choice_of_experts(score, experts, rows):
    torch.manual_seed(rows)
    logits = torch.randn(rows, experts, device="cuda")
    # Some logits are equal, none so near another that rounding could decide.
    logits = (logits * 64).round() / 64
    bias = torch.randint(0, 3, (experts,), device="cuda").float()
    for extras in (None, bias):
        ids = torch.full((rows, TOP_K), -1, device="cuda")
        weights = torch.full((rows, TOP_K), torch.nan, device="cuda")
        given = RouteArguments(None, score, TOP_K, torch.float32, extras, 2.5, extras)
        choose(given, logits, ids, weights).run()
        on_cpu = None if extras is None else extras.cpu()
        wanted, shares = choice_by(replace(given, bias=on_cpu, expert_scale=on_cpu), logits.cpu())
        assert torch.equal(ids.cpu(), wanted)
        torch.testing.assert_close(weights.cpu(), shares, rtol=5e-6, atol=1e-7)
