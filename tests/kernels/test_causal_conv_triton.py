"""The convolution kernels in the interpreter, against the reference in float64.

The input is a view into a larger buffer full of NaN, and unwritten memory is NaN too.
"""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.causal_conv import op as reference
from kinfolk_kernels.causal_conv import triton_backend as kernels
from kinfolk_kernels.causal_conv.op import CausalConvCommitArguments, DeltaInputsArguments

COMMIT = CausalConvCommitArguments(torch.float32, torch.device("cpu"))

pytestmark = pytest.mark.interpreter

# (relative L2 of a row, largest error / rms): a sum of four products that may cancel, and SiLU;
# then one rounding to the output type.
BOUND = {torch.float32: (1e-6, 1e-5), torch.float16: (5e-4, 1e-2)}
CHANNELS = pytest.mark.parametrize("channels", [7, 256, 300])
GUARD = 16


@pytest.fixture(autouse=True)
def poison():
    """Fresh memory is NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def inputs(numbers):
    """``inputs(rows, channels)``: a view with NaN on all sides."""

    def draw(rows, channels, dtype=torch.float32):
        buffer = torch.full((rows + 2 * GUARD, channels + 9), torch.nan, dtype=dtype)
        view = buffer[GUARD:-GUARD, 4 : 4 + channels]
        return view.copy_(numbers(rows, channels))

    return draw


def fresh_state(numbers, rows, taps, channels, spare=2):
    """State [slots, taps - 1, C]: numbers in the slots in use, NaN elsewhere."""
    slots = rows.slot_of_sequence.tolist()
    state = torch.full((max(slots) + spare + 1, taps - 1, channels), torch.nan)
    state[slots] = numbers(len(slots), taps - 1, channels)
    return state


def check(rows, x, weight, state, assert_near):
    """Outputs near, states exact."""
    expected = state.clone()
    reference.causal_conv(x, weight, expected, rows)
    wide = reference.causal_conv(x.double(), weight.double(), state.double(), rows)
    found = kernels.causal_conv(x, weight, state, rows)
    assert found.dtype == x.dtype
    assert_near(found, wide, BOUND[x.dtype])
    assert torch.equal(state.view(torch.int32), expected.view(torch.int32))


@CHANNELS
@pytest.mark.parametrize("taps", [2, 4, 5])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 65])
def test_slices_and_single_rows_advance_their_states(
    steps, numbers, inputs, assert_near, taps, length, channels
):
    rows = steps.build(steps.certain(0, length), steps.certain(9, 2), steps.certain(70, 1))
    x = inputs(length + 3, channels)
    state = fresh_state(numbers, rows, taps, channels)
    check(rows, x, numbers(channels, taps), state, assert_near)


@CHANNELS
def test_drafts_leave_the_state(steps, numbers, inputs, assert_near, channels):
    rows = steps.build(
        steps.chain(5, 6),
        steps.certain(0, 4),
        steps.random_tree(64, 31),
        steps.certain(5, 1),
        steps.tree(3, [-1, -1, 0, 0, 1, 4, 5]),
        steps.chain(9, 1),
        slots=(4, 2, 5, 6, 1, 3),
    )
    x = inputs(len(rows.positions), channels)
    state = fresh_state(numbers, rows, 4, channels)
    before = state.clone()
    check(rows, x, numbers(channels, 4), state, assert_near)
    drafted = [4, 5, 1, 3]
    assert torch.equal(state[drafted], before[drafted])


@pytest.mark.parametrize("after", [1, 2, 3, 4, 63, 70])
def test_stores_hold_the_state_after_their_row(steps, numbers, inputs, assert_near, after):
    parts = (steps.certain(3, 2), steps.certain(0, 70), steps.certain(5, 1), steps.chain(7, 2))
    stores = ((2 + after - 1, 5), (0, 6), (72, 7), (74, 8))
    rows = steps.build(*parts, slots=(2, 1, 3, 4), stores=stores)
    x = inputs(75, 20)
    check(rows, x, numbers(20, 4), fresh_state(numbers, rows, 4, 20, spare=5), assert_near)


def test_narrow_rows_keep_a_wide_state(steps, numbers, inputs, assert_near):
    rows = steps.build(steps.certain(0, 5), steps.certain(9, 1))
    x = inputs(6, 33, torch.float16)
    check(rows, x, numbers(33, 4), fresh_state(numbers, rows, 4, 33), assert_near)


def test_a_row_does_not_depend_on_the_rows_beside_it(steps, numbers, inputs):
    """One row a program for a few rows, several for many: the same bits."""
    rows = steps.build(steps.certain(0, 40))
    x, weight = inputs(40, 20), numbers(20, 4)
    state = fresh_state(numbers, rows, 4, 20)
    first, other = state.clone(), state.clone()
    together = kernels.causal_conv(x, weight, first, rows)
    pieces = [
        kernels.causal_conv(
            x[start : start + 20], weight, other, steps.build(steps.certain(start, 20))
        )
        for start in (0, 20)
    ]
    assert torch.equal(together, torch.cat(pieces))
    assert torch.equal(first[1], other[1])


# -- fused with the other ops before the recurrence -----------------------------------------------


def delta_arguments(x, weight, key_heads, heads):
    return DeltaInputsArguments(weight, key_heads, heads, 1e-6, x.dtype, x.device)


def unit(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize(("key_heads", "heads", "dim"), [(1, 1, 64), (2, 4, 32), (1, 3, 128)])
def test_delta_inputs_are_the_parts_one_after_the_other(
    steps, numbers, inputs, assert_near, key_heads, heads, dim
):
    parts = (steps.certain(5, 1), steps.chain(9, 6), steps.certain(0, 9), steps.certain(3, 1))
    rows = steps.build(*parts, slots=(3, 1, 2, 4), stores=((0, 6), (10, 5)))
    channels = (2 * key_heads + heads) * dim
    x, weight = inputs(17, channels, torch.float16), numbers(channels, 4)
    state = fresh_state(numbers, rows, 4, channels)
    gates = kernels.DeltaGates(
        inputs(17, heads), inputs(17, heads), -numbers(heads).abs(), numbers(heads)
    )
    gates.alpha[3] = -30.0
    expected, wide = state.clone(), state.double()
    reference.causal_conv(x, weight, expected, rows)
    mixed = reference.causal_conv(x.double(), weight.double(), wide, rows)
    found = kernels.delta_inputs(
        delta_arguments(x, weight, key_heads, heads), x, gates, state, rows
    )
    assert torch.equal(state.view(torch.int32), expected.view(torch.int32))
    keys = key_heads * dim
    q, k = (mixed[:, i * keys : (i + 1) * keys].view(17, key_heads, dim) for i in range(2))
    bound = (2e-6, 1e-5)
    assert_near(found.q, unit(q) * dim**-0.5, bound)
    assert_near(found.k, unit(k), bound)
    assert_near(found.v, mixed[:, 2 * keys :].view(17, heads, dim), bound)
    softplus = torch.nn.functional.softplus(gates.alpha.double() + gates.dt.double())
    assert_near(found.g, gates.a.double() * softplus, (2e-6, 1e-5))
    assert_near(found.beta, gates.beta.double().sigmoid(), (1e-6, 1e-5))


# -- commit ---------------------------------------------------------------------------------------


def commit_arguments(rows, kept):
    """path [D, T] padded with -1, n_keep [D], slot [D]; one column more than the longest."""
    path = torch.full((len(kept), max(map(len, kept)) + 1), -1)
    for index, chosen in enumerate(kept):
        path[index, : len(chosen)] = torch.tensor(chosen, dtype=torch.int64)
        path[index, : len(chosen)] += rows.segments[index].start
    return path, torch.tensor([len(k) for k in kept]), rows.slot_of_sequence


@CHANNELS
@pytest.mark.parametrize("taps", [2, 4, 5])
def test_a_commit_equals_feeding_the_kept_rows(steps, numbers, inputs, channels, taps):
    parts = (steps.chain(5, 6), steps.tree(64, [-1, 0, 0, 2, 1, 4]), steps.chain(9, 1))
    rows = steps.build(*parts, steps.chain(9, 1), slots=(3, 1, 4, 2))
    x, state = inputs(14, channels), fresh_state(numbers, rows, taps, channels)
    arguments = commit_arguments(rows, [[0, 1], [0, 1, 4, 5], [0], []])
    expected = state.clone()
    reference.causal_conv_commit(COMMIT, [(x, expected)], *arguments)
    kernels.causal_conv_commit(COMMIT, [(x, state)], *arguments)
    assert torch.equal(state.view(torch.int32), expected.view(torch.int32))


def test_layers_are_committed_together_as_each_alone(steps, numbers, inputs):
    """Those of some layers have rows in a wider tensor, and a launch of their own."""
    rows = steps.build(steps.chain(5, 4), steps.chain(9, 2), slots=(2, 1))
    arguments = commit_arguments(rows, [[0, 1, 2], []])
    together, alone = [], []
    for layer in range(11):
        wide, state = inputs(6, 12), fresh_state(numbers, rows, 4, 7)
        x = wide[:, 3:10] if layer % 4 == 1 else wide[:, :7].contiguous()
        together.append((x, state))
        alone.append(state.clone())
        kernels.causal_conv_commit(COMMIT, [(x, alone[-1])], *arguments)
    kernels.causal_conv_commit(COMMIT, together, *arguments)
    for (_, state), expected in zip(together, alone, strict=True):
        assert torch.equal(state.view(torch.int32), expected.view(torch.int32))


def test_a_commit_reads_kept_rows_only(steps, numbers, inputs):
    rows = steps.build(steps.chain(0, 4), steps.chain(0, 4))
    x, state = inputs(8, 7), fresh_state(numbers, rows, 4, 7)
    x[[0, 1, 2, 3, 6, 7]] = torch.nan
    kernels.causal_conv_commit(
        CausalConvCommitArguments(x.dtype, x.device),
        [(x, state)],
        *commit_arguments(rows, [[0, 1, 2, 3], [0, 1]]),
    )
    assert state[1].isfinite().all()


# -- unsupported arguments ------------------------------------------------------------------------


def test_refusals_say_why(numbers):
    x, weight = numbers(2, 64), numbers(64, 4)

    def refusal(x, weight, key_heads=1, heads=2):
        return kernels.supports_inputs(delta_arguments(x, weight, key_heads, heads)).reason

    assert refusal(x, weight) == ""
    assert refusal(x.bfloat16(), weight) == (
        "Triton's interpreter computes wrong numbers from bfloat16"
    )
    strided = numbers(4, 64).T
    assert refusal(x, strided) == "the weight is not contiguous float32 (torch.float32)"
    assert "heads of 12 numbers" in refusal(x, weight, 1, 3)
    narrow = CausalConvCommitArguments(torch.bfloat16, x.device)
    assert "bfloat16" in kernels.supports_commit(narrow).reason
