"""The gated delta rule, against the recurrence in float64 with keys and values the other way round.

The oracle keeps S as [dk, dv] and follows each row's path from the committed state; nothing is
shared with the implementations.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from kinfolk_kernels.gated_delta import op as reference
from kinfolk_kernels.gated_delta import torch_backend as fast
from kinfolk_kernels.gated_delta.op import GatedDeltaArguments

DELTA = GatedDeltaArguments(16, 48, 128, 128, torch.float32, torch.device("cpu"))

BACKENDS = pytest.mark.parametrize("backend", [reference, fast], ids=["ref", "torch"])
RATIOS = pytest.mark.parametrize(("key_heads", "value_heads"), [(2, 2), (2, 4), (1, 3), (2, 6)])
KEY_DIM, VALUE_DIM = 8, 12

# (relative L2 of a row and head, largest error / rms). A hundred dependent updates in float32, and
# outputs S q that cancel: three times what was measured.
F32 = (6e-5, 3e-5)
STATE = (5e-6, 2e-5)


@dataclass
class Inputs:
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor

    def __iter__(self):
        return iter((self.q, self.k, self.v, self.g, self.beta))


@pytest.fixture
def inputs(numbers):
    """``inputs(rows, key_heads, value_heads)``: unit keys and queries, decays of every size."""
    generator = torch.Generator().manual_seed(5)

    def draw(rows, key_heads=2, value_heads=4):
        unit = torch.nn.functional.normalize
        shape = (rows, value_heads)
        g = -torch.empty(shape).exponential_(5, generator=generator)
        g = torch.where(torch.rand(shape, generator=generator) < 0.1, 20 * g, g)
        return Inputs(
            unit(numbers(rows, key_heads, KEY_DIM), dim=-1) * KEY_DIM**-0.5,
            unit(numbers(rows, key_heads, KEY_DIM), dim=-1),
            numbers(rows, value_heads, VALUE_DIM),
            g,
            torch.rand(shape, generator=generator),
        )

    return draw


def follow(given, state, row):
    """One row from ``state`` [H, dk, dv]: output [H, dv] and the state after it, float64."""
    q, k, v, g, beta = (x[row].double() for x in given)
    heads = torch.arange(len(v)) % len(k)
    state = g.exp()[:, None, None] * state
    d = beta[:, None] * (v - torch.einsum("hk,hkv->hv", k[heads], state))
    state = state + torch.einsum("hk,hv->hkv", k[heads], d)
    return torch.einsum("hk,hkv->hv", q[heads], state), state


def exact(given, rows, entry):
    """All rows along their parents from ``entry`` [slots, H, dv, dk]: outputs [R, H, dv] and the
    state after each row [R, H, dv, dk]."""
    found = []
    for index, part in enumerate(rows.parts):
        segment = rows.segments[index]
        root = entry[segment.slot].double().transpose(1, 2)
        for row, up in enumerate(part.ups):
            before = root if up < 0 else found[segment.start + up][1]
            found.append(follow(given, before, segment.start + row))
    outs, states = zip(*found, strict=True)
    return torch.stack(outs), torch.stack(states).transpose(2, 3)


def fresh_state(numbers, rows, value_heads, spare=2):
    """Numbers in the slots in use, NaN elsewhere."""
    slots = rows.slot_of_sequence.tolist()
    state = torch.full((max(slots) + spare + 1, value_heads, VALUE_DIM, KEY_DIM), torch.nan)
    state[slots] = numbers(len(slots), value_heads, VALUE_DIM, KEY_DIM)
    return state


def check(backend, rows, given, state, assert_near):
    """Compare all outputs, the states of certain parts and stores; nothing else is written."""
    entry = state.clone()
    out, trace = backend.gated_delta(DELTA, *given, state, rows)
    outs, states = exact(given, rows, entry)
    assert_near(out, outs, F32)
    moved = {s.slot: s.stop - 1 for s in rows.segments if not s.drafted}
    moved |= dict(zip(rows.store_slots.tolist(), rows.store_rows.tolist(), strict=True))
    for slot in range(len(state)):
        if slot in moved:
            assert_near(state[slot].flatten(1), states[moved[slot]].flatten(1), STATE)
        else:
            assert torch.equal(state[slot].view(torch.int32), entry[slot].view(torch.int32))
    assert (trace is None) == (not any(part.drafted for part in rows.parts))
    return trace


@BACKENDS
@RATIOS
@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 129])
def test_slices(steps, numbers, inputs, assert_near, backend, length, key_heads, value_heads):
    rows = steps.build(steps.certain(0, length))
    given = inputs(length, key_heads, value_heads)
    check(backend, rows, given, fresh_state(numbers, rows, value_heads), assert_near)


@BACKENDS
@RATIOS
def test_a_ragged_step_of_everything(
    steps, numbers, inputs, assert_near, backend, key_heads, value_heads
):
    rows = steps.build(
        steps.certain(5, 1),
        steps.chain(9, 6),
        steps.certain(0, 66),
        steps.random_tree(64, 31),
        steps.certain(7, 1),
        steps.tree(3, [-1, 0, 0, 0, 1, 4, 5]),
        steps.chain(9, 1),
        slots=(3, 7, 1, 2, 9, 4, 6),
        stores=((0, 10), (9, 11), (70, 12)),
    )
    given = inputs(len(rows.positions), key_heads, value_heads)
    check(backend, rows, given, fresh_state(numbers, rows, value_heads, spare=4), assert_near)


@BACKENDS
@pytest.mark.parametrize("after", [1, 2, 63, 64, 65, 100])
def test_stores_hold_the_state_after_their_row(steps, numbers, inputs, assert_near, backend, after):
    rows = steps.build(steps.certain(0, 100), stores=((after - 1, 3), (99, 2)))
    check(backend, rows, inputs(100), fresh_state(numbers, rows, 4), assert_near)


@BACKENDS
def test_a_chain_equals_a_slice(steps, numbers, inputs, assert_near, backend):
    given = inputs(20)
    slice_, chain = steps.build(steps.certain(0, 20)), steps.build(steps.chain(0, 20))
    state = fresh_state(numbers, slice_, 4)
    certain, _ = backend.gated_delta(DELTA, *given, state.clone(), slice_)
    drafted, _ = backend.gated_delta(DELTA, *given, state, chain)
    assert_near(drafted, certain, F32)


# -- extremes -------------------------------------------------------------------------------------


@BACKENDS
@pytest.mark.parametrize("drafted", [False, True], ids=["slice", "chain"])
@pytest.mark.parametrize("decay", [0.0, -20.0, -1e4])
def test_decays_from_none_to_total(steps, numbers, inputs, assert_near, backend, decay, drafted):
    part = steps.chain(0, 60) if drafted else steps.certain(0, 60)
    rows, given = steps.build(part), inputs(60)
    given.g.fill_(decay)
    check(backend, rows, given, fresh_state(numbers, rows, 4), assert_near)


@BACKENDS
@pytest.mark.parametrize("drafted", [False, True], ids=["slice", "chain"])
@pytest.mark.parametrize("decay", [-20.0, -1e4])
def test_what_follows_a_hard_reset_keeps_its_precision(
    steps, numbers, inputs, assert_near, backend, decay, drafted
):
    """Summed decays are large after it, their differences small."""
    part = steps.chain(0, 60) if drafted else steps.certain(0, 60)
    rows, given = steps.build(part), inputs(60)
    given.g[::7] = decay
    state = fresh_state(numbers, rows, 4)
    entry = state.clone()
    trace = check(backend, rows, given, state, assert_near)
    if trace is not None:
        backend.gated_delta_commit(
            DELTA, [(trace, state)], *commit_arguments(rows, [list(range(60))])
        )
        expected = exact(given, rows, entry)[1][-1]
        assert_near(state[1].flatten(1), expected.flatten(1), STATE)


@BACKENDS
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_rates_of_zero_and_one(steps, numbers, inputs, assert_near, backend, beta):
    rows = steps.build(steps.certain(0, 65), steps.random_tree(3, 20), steps.certain(3, 1))
    given = inputs(86)
    given.beta.fill_(beta)
    check(backend, rows, given, fresh_state(numbers, rows, 4), assert_near)


@BACKENDS
def test_a_rate_of_one_stores_the_value_under_its_key(steps, numbers, inputs, backend):
    """S k = v after a row with beta 1 and a unit key."""
    rows, given = steps.build(steps.certain(0, 9)), inputs(9, 2, 2)
    given.beta.fill_(1)
    state = fresh_state(numbers, rows, 2)
    backend.gated_delta(DELTA, *given, state, rows)
    read = torch.einsum("hvk,hk->hv", state[1], given.k[-1])
    torch.testing.assert_close(read, given.v[-1], rtol=1e-4, atol=1e-4)


@BACKENDS
def test_worked_example(steps, backend):
    """Three rows of one head with dk = dv = 2 from a zero state."""
    unit = torch.nn.functional.normalize
    q = unit(torch.tensor([[[1.0, 0]], [[0, 1]], [[3, 4]]]), dim=-1) * 2**-0.5
    k = unit(torch.tensor([[[1.0, 1]], [[1, 0]], [[0, -2]]]), dim=-1)
    v = torch.tensor([[[1.0, 2]], [[-1, 0.5]], [[2, 0]]])
    g = torch.tensor([[-0.1], [-0.5], [-1.0]])
    beta = torch.tensor([[0.5], [0.25], [0.9]])
    state = torch.zeros(2, 1, 2, 2)
    out, _ = backend.gated_delta(DELTA, q, k, v, g, beta, state, steps.build(steps.certain(0, 3)))
    expected = [[0.25, 0.5], [0.1516326, 0.3032651], [-1.0276884, 0.0786393]]
    torch.testing.assert_close(out[:, 0], torch.tensor(expected), rtol=0, atol=1e-6)
    final = torch.tensor([[-0.0328035, 0.1643175], [-1.7921109, 0.0157777]])  # rows = keys
    torch.testing.assert_close(state[1, 0].T, final, rtol=0, atol=1e-6)


# -- commit ---------------------------------------------------------------------------------------


@BACKENDS
@RATIOS
def test_a_commit_equals_feeding_the_kept_rows(
    steps, numbers, inputs, assert_near, backend, key_heads, value_heads
):
    rows = steps.build(
        steps.chain(5, 16),
        steps.certain(0, 3),
        steps.random_tree(64, 40, seed=2),
        steps.tree(3, [-1, 0, 0, 2, 1, 4]),
        steps.chain(9, 1),
        slots=(4, 1, 2, 6, 3),
    )
    given = inputs(len(rows.positions), key_heads, value_heads)
    state = fresh_state(numbers, rows, value_heads)
    _, trace = backend.gated_delta(DELTA, *given, state, rows)
    entry = state.clone()
    kept = {0: list(range(11)), 2: rows.parts[2].path(39), 3: [0, 1, 4], 4: [0]}
    backend.gated_delta_commit(
        DELTA, [(trace, state)], *commit_arguments(rows, list(kept.values()), [*kept])
    )
    states = exact(given, rows, entry)[1]
    for index, path in kept.items():
        segment = rows.segments[index]
        expected = states[segment.start + path[-1]]
        assert_near(state[segment.slot].flatten(1), expected.flatten(1), STATE)
    assert torch.equal(state[1], entry[1])
    assert state[[0, 5, 7, 8]].isnan().all()


@BACKENDS
def test_a_commit_reads_kept_rows_only(steps, numbers, inputs, backend):
    """A neighbour with NaN, in the first row of all, must not spoil a shorter path."""
    rows = steps.build(steps.chain(0, 4), steps.chain(0, 4))
    given, state = inputs(8), fresh_state(numbers, rows, 4)
    given.v[:4] = torch.nan
    given.k[6:] = torch.nan
    _, trace = backend.gated_delta(DELTA, *given, state, rows)
    backend.gated_delta_commit(
        DELTA, [(trace, state)], *commit_arguments(rows, [[0, 1, 2, 3], [0, 1]])
    )
    assert state[1].isfinite().all()
    assert state[2].isnan().any()


def commit_arguments(rows, kept, parts=None):
    """path [D, T] padded with -1, n_keep [D], slot [D]; one column more than the longest."""
    segments = [rows.segments[index] for index in (parts or range(len(kept)))]
    path = torch.full((len(kept), max(map(len, kept)) + 1), -1)
    for index, (segment, chosen) in enumerate(zip(segments, kept, strict=True)):
        path[index, : len(chosen)] = torch.tensor(chosen) + segment.start
    return path, torch.tensor([len(k) for k in kept]), torch.tensor([s.slot for s in segments])
