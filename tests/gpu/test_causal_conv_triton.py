"""The convolution kernels on the GPU, with the channels of released models."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.causal_conv import op as reference
from kinfolk_kernels.causal_conv import triton_backend as kernels
from kinfolk_kernels.causal_conv.op import CausalConvCommitArguments, DeltaInputsArguments

COMMIT = CausalConvCommitArguments(torch.bfloat16, torch.device("cuda"))

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

# (relative L2 of a row, largest error / rms): a sum of four products that may cancel, and SiLU;
# then one rounding to the output type. Products that cancel may be 500 times the root mean square
# of all, so each of some six roundings to 2^-24 may be an error of 3e-5.
BOUND = {
    torch.float32: (1e-6, 2e-4),
    torch.float16: (5e-4, 1e-3),
    torch.bfloat16: (4e-3, 8e-3),
}
KEY_HEADS, DIM = 16, 128
WIDE, NARROW = 10240, 8192


@pytest.fixture
def state_of(numbers):
    """State [slots, 3, C]: numbers in the slots in use, NaN elsewhere."""

    def make(rows, channels):
        slots = rows.slot_of_sequence.tolist()
        stores = rows.store_slots.tolist()
        state = torch.full((max(slots + stores) + 1, 3, channels), torch.nan)
        state[slots] = numbers(len(slots), 3, channels)
        return state.cuda()

    return make


def same_bits(a, b):
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


def steps_of(steps, name):
    return {
        "single": lambda: steps.build(*(steps.certain(9, 1) for _ in range(16))),
        "slice": lambda: steps.build(steps.certain(0, 300), stores=((140, 3), (299, 2))),
        "everything": lambda: steps.build(
            steps.certain(5, 1),
            steps.chain(9, 6),
            steps.certain(0, 66),
            steps.random_tree(64, 31),
            steps.tree(3, [-1, -1, 0, 0, 1, 4, 5]),
            steps.certain(7, 2),
            slots=(3, 7, 1, 2, 9, 4),
            stores=((0, 10), (9, 11), (70, 12)),
        ),
    }[name]()


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("name", ["single", "slice", "everything"])
def test_rows_and_states(steps, numbers, state_of, on_gpu, assert_near, poisoned, name, dtype):
    rows = on_gpu(steps_of(steps, name))
    # Sums of four products that float16 can hold.
    x = numbers(len(rows.positions), WIDE).clamp(-100, 100).to("cuda", dtype)
    weight, state = numbers(WIDE, 4).clamp(-100, 100).cuda(), state_of(rows, WIDE).clamp(-100, 100)
    expected = state.clone()
    reference.causal_conv(x, weight, expected, rows)
    wide = reference.causal_conv(x.double(), weight.double(), state.double(), rows)
    with poisoned():
        found = kernels.causal_conv(x, weight, state, rows)
    assert_near(found, wide, BOUND[dtype])
    assert same_bits(state, expected)


def test_a_commit_equals_feeding_the_kept_rows(steps, numbers, state_of, on_gpu):
    parts = (steps.chain(5, 16), steps.random_tree(64, 40), steps.chain(9, 1), steps.chain(9, 1))
    rows = on_gpu(steps.build(*parts))
    x, state = numbers(58, WIDE).to("cuda", torch.bfloat16), state_of(rows, WIDE)
    kept = [list(range(11)), parts[1].path(39), [0], []]
    path = torch.full((4, 17), -1)
    for index, chosen in enumerate(kept):
        path[index, : len(chosen)] = torch.tensor(chosen, dtype=torch.int64)
        path[index, : len(chosen)] += rows.segments[index].start
    arguments = path.cuda(), torch.tensor([len(k) for k in kept]).cuda(), rows.slot_of_sequence
    expected = state.clone()
    reference.causal_conv_commit(COMMIT, [(x, expected)], *arguments)
    kernels.causal_conv_commit(COMMIT, [(x, state)], *arguments)
    assert same_bits(state, expected)


def delta_arguments(x, weight, key_heads, heads):
    return DeltaInputsArguments(weight, key_heads, heads, 1e-6, x.dtype, x.device)


def unit(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize(("channels", "heads"), [(WIDE, 48), (NARROW, 32)])
@pytest.mark.parametrize("name", ["single", "slice", "everything"])
def test_delta_inputs_are_the_parts_one_after_the_other(
    steps, numbers, state_of, on_gpu, assert_near, poisoned, name, channels, heads
):
    rows = on_gpu(steps_of(steps, name))
    count, keys = len(rows.positions), KEY_HEADS * DIM
    x = numbers(count, channels).to("cuda", torch.bfloat16)
    weight, state = numbers(channels, 4).cuda(), state_of(rows, channels)
    alpha, beta = (numbers(count, heads).cuda() for _ in range(2))
    gates = kernels.DeltaGates(alpha, beta, -numbers(heads).abs().cuda(), numbers(heads).cuda())
    expected = state.clone()
    reference.causal_conv(x, weight, expected, rows)
    mixed = reference.causal_conv(x.double(), weight.double(), state.double(), rows)
    with poisoned():
        found = kernels.delta_inputs(
            delta_arguments(x, weight, KEY_HEADS, gates.alpha.shape[1]), x, gates, state, rows
        )
    assert same_bits(state, expected)
    q, k, v = (y.unflatten(1, (-1, DIM)) for y in mixed.split((keys, keys, heads * DIM), 1))
    bound = (3e-6, 3e-5)
    assert_near(found.q, unit(q) * DIM**-0.5, bound)
    assert_near(found.k, unit(k), bound)
    assert_near(found.v, v, bound)
    softplus = torch.nn.functional.softplus(alpha.double() + gates.dt.double())
    assert_near(found.g, gates.a.double() * softplus, bound)
    assert_near(found.beta, beta.double().sigmoid(), bound)


def test_twenty_runs_and_any_company_give_the_same_bits(steps, numbers, state_of, on_gpu):
    rows = on_gpu(steps_of(steps, "everything"))
    x = numbers(len(rows.positions), WIDE).to("cuda", torch.bfloat16)
    weight, entry = numbers(WIDE, 4).cuda(), state_of(rows, WIDE)
    heads = torch.zeros(len(x), 48, device="cuda")
    gates = kernels.DeltaGates(heads, heads, heads[0], heads[0])
    first = None
    for _ in range(20):
        state = entry.clone()
        found = kernels.delta_inputs(
            delta_arguments(x, weight, KEY_HEADS, gates.alpha.shape[1]), x, gates, state, rows
        )
        first = first or (found, state)
        assert same_bits(found.q, first[0].q)
        assert same_bits(state, first[1])
    for index, part in enumerate(rows.parts):
        alone, span = on_gpu(steps.build(part, slots=(1,))), rows.span(index)
        own = entry[[0, rows.segments[index].slot]].clone()
        mine = kernels.DeltaGates(heads[span], heads[span], heads[0], heads[0])
        found = kernels.delta_inputs(
            delta_arguments(x, weight, KEY_HEADS, 48), x[span], mine, own, alone
        )
        assert same_bits(found.q, first[0].q[span])
        assert same_bits(own[1], first[1][rows.segments[index].slot])
