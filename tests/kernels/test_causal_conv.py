"""Depthwise causal convolution, against torch's convolution of each row's whole history."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.causal_conv import op as reference
from kinfolk_kernels.causal_conv import torch_backend as fast
from kinfolk_kernels.causal_conv.op import CausalConvCommitArguments

COMMIT = CausalConvCommitArguments(torch.float32, torch.device("cpu"))

BACKENDS = pytest.mark.parametrize("backend", [reference, fast], ids=["ref", "torch"])
LENGTHS = pytest.mark.parametrize("length", [1, 2, 3, 63, 64, 65, 127, 129])
CHANNELS = 7

F32 = (1e-6, 1e-5)
"""(relative L2 of a row, largest error / rms): a sum of four products that may cancel, and SiLU."""


def poisoned_state(numbers, rows, taps, spare=2):
    """State [slots, taps - 1, C]: numbers in the slots in use, NaN elsewhere."""
    slots = rows.slot_of_sequence.tolist()
    state = torch.full((max(slots) + spare + 1, taps - 1, CHANNELS), torch.nan)
    state[slots] = numbers(len(slots), taps - 1, CHANNELS)
    return state


def histories(rows, x, state):
    """The inputs of each row, from the oldest committed one to its own, float64 [n, C]."""
    found = []
    for index, part in enumerate(rows.parts):
        span = rows.span(index)
        committed = state[rows.segments[index].slot].double()
        found += [
            torch.cat([committed, x[span][part.path(row)].double()]) for row in range(part.rows)
        ]
    return found


def exact(history, weight):
    """The last output of the convolution, by torch, and SiLU; float64 [C]."""
    y = torch.nn.functional.conv1d(
        history.T[None], weight.double()[:, None], groups=weight.shape[0]
    )[0, :, -1]
    return y * y.sigmoid()


def check(backend, rows, x, weight, state, assert_near):
    """Compare outputs, states of certain parts and stores with the oracle; return the histories."""
    seen = histories(rows, x, state)
    past = weight.shape[1] - 1
    expected = state.clone()
    for segment in rows.segments:
        if not segment.drafted:
            expected[segment.slot] = seen[segment.stop - 1][-past:].float()
    for row, slot in zip(rows.store_rows.tolist(), rows.store_slots.tolist(), strict=True):
        expected[slot] = seen[row][-past:].float()
    found = backend.causal_conv(x, weight, state, rows)
    assert found.dtype == x.dtype
    assert_near(found, torch.stack([exact(history, weight) for history in seen]), F32)
    assert torch.equal(state.view(torch.int32), expected.view(torch.int32))
    return seen


@BACKENDS
@LENGTHS
@pytest.mark.parametrize("taps", [2, 4, 5])
def test_slices_advance_the_state(steps, numbers, assert_near, backend, length, taps):
    rows = steps.build(steps.certain(0, length), steps.certain(9, 2), steps.certain(70, 1))
    x = numbers(length + 3, CHANNELS)
    state = poisoned_state(numbers, rows, taps)
    check(backend, rows, x, numbers(CHANNELS, taps), state, assert_near)


@BACKENDS
def test_drafts_leave_the_state(steps, numbers, assert_near, backend):
    rows = steps.build(
        steps.chain(5, 6),
        steps.certain(0, 4),
        steps.random_tree(64, 31),
        steps.tree(3, [-1, 0, 0, 0, 1, 4, 5]),
        steps.chain(9, 1),
        slots=(4, 2, 5, 1, 3),
    )
    x = numbers(len(rows.positions), CHANNELS)
    state = poisoned_state(numbers, rows, 4)
    before = state.clone()
    check(backend, rows, x, numbers(CHANNELS, 4), state, assert_near)
    drafted = [4, 5, 1, 3]
    assert torch.equal(state[drafted], before[drafted])


@BACKENDS
@pytest.mark.parametrize("after", [1, 2, 3, 4, 63, 64, 65])
def test_stores_hold_the_state_after_their_row(steps, numbers, assert_near, backend, after):
    parts = (steps.certain(3, 2), steps.certain(0, 70))
    rows = steps.build(*parts, slots=(2, 1), stores=((2 + after - 1, 4), (0, 3)))
    x = numbers(72, CHANNELS)
    state = poisoned_state(numbers, rows, 4, spare=3)
    check(backend, rows, x, numbers(CHANNELS, 4), state, assert_near)


@BACKENDS
def test_a_slice_cut_in_pieces_gives_the_same(steps, numbers, assert_near, backend):
    x, weight = numbers(100, CHANNELS), numbers(CHANNELS, 4)
    whole = steps.build(steps.certain(0, 100))
    state = numbers(2, 3, CHANNELS)
    pieces = state.clone()
    expected = backend.causal_conv(x, weight, state, whole)
    found, start = [], 0
    for size in (1, 2, 61, 36):
        step = steps.build(steps.certain(start, size))
        found.append(backend.causal_conv(x[start : start + size], weight, pieces, step))
        start += size
    assert_near(torch.cat(found), expected, F32)
    assert torch.equal(pieces, state)


@BACKENDS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_rows_keep_a_wide_state(steps, numbers, backend, dtype):
    rows = steps.build(steps.certain(0, 5))
    x, state = numbers(5, CHANNELS).to(dtype), torch.zeros(2, 3, CHANNELS)
    assert backend.causal_conv(x, numbers(CHANNELS, 4), state, rows).dtype == dtype
    assert torch.equal(state[1], x[-3:].float())


@BACKENDS
def test_worked_example(steps, backend):
    """Taps 0.1, 0.2, 0.3, 0.4 over 1, 2, 3: sums 0.4, 1.1, 2.0, then SiLU."""
    rows = steps.build(steps.certain(0, 3))
    weight = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    found = backend.causal_conv(torch.tensor([[1.0], [2], [3]]), weight, torch.zeros(2, 3, 1), rows)
    expected = torch.tensor([[0.2394751], [0.8252861], [1.7615942]])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


# -- commit ---------------------------------------------------------------------------------------


@BACKENDS
def test_a_commit_equals_feeding_the_kept_rows(steps, numbers, backend):
    parts = (steps.chain(5, 6), steps.tree(64, [-1, 0, 0, 2, 1, 4]), steps.chain(9, 1))
    rows = steps.build(*parts, slots=(3, 1, 4))
    x, state = numbers(13, CHANNELS), poisoned_state(numbers, rows, 4)
    kept = [[0, 1], [0, 1, 4, 5], [0]]
    expected = state.clone()
    for index, path in enumerate(kept):
        inputs = x[rows.span(index)][path]
        slot = rows.segments[index].slot
        expected[slot] = torch.cat([state[slot], inputs])[-3:]
    backend.causal_conv_commit(COMMIT, [(x, state)], *commit_arguments(rows, kept))
    assert torch.equal(state.view(torch.int32), expected.view(torch.int32))


@BACKENDS
def test_a_commit_reads_kept_rows_only(steps, numbers, backend):
    """The first row belongs to another sequence, and padding of a path must not read it."""
    rows = steps.build(steps.chain(0, 4), steps.chain(0, 4))
    x, state = numbers(8, CHANNELS), poisoned_state(numbers, rows, 4)
    x[[0, 1, 2, 3, 6, 7]] = torch.nan
    backend.causal_conv_commit(
        CausalConvCommitArguments(x.dtype, x.device),
        [(x, state)],
        *commit_arguments(rows, [[0, 1, 2, 3], [0, 1]]),
    )
    assert state[1].isfinite().all()


def commit_arguments(rows, kept):
    """path [D, T] padded with -1, n_keep [D], slot [D]; one column more than the longest."""
    width = max(map(len, kept)) + 1
    path = torch.full((len(kept), width), -1)
    for index, rows_kept in enumerate(kept):
        path[index, : len(rows_kept)] = torch.tensor(rows_kept) + rows.segments[index].start
    return path, torch.tensor([len(k) for k in kept]), rows.slot_of_sequence
