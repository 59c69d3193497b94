"""The gated delta kernels in the interpreter, against the reference in float64.

Inputs are views into larger buffers full of NaN, and unwritten memory is NaN too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from kinfolk_kernels.device import SMALL_SHARED
from kinfolk_kernels.gated_delta import launches
from kinfolk_kernels.gated_delta import op as reference
from kinfolk_kernels.gated_delta import triton_backend as kernels
from kinfolk_kernels.gated_delta.few import FEW_ROWS
from kinfolk_kernels.gated_delta.op import GatedDeltaArguments
from kinfolk_kernels.gated_delta.tiles import chunk_tile

DELTA = GatedDeltaArguments(16, 48, 128, 128, torch.float32, torch.device("cpu"))

pytestmark = pytest.mark.interpreter

# (relative L2 of a row and head, largest error / rms): the bounds of the float32 implementations,
# for dependent updates and outputs that cancel.
OUT = (6e-5, 3e-5)
STATE = (5e-6, 2e-5)

ONE_PASS = 1e-3
"""Of all numbers together: three roundings to 2^-12, of which each row keeps some, make 5e-4."""

HEADS = pytest.mark.parametrize(("key_heads", "value_heads"), [(2, 2), (2, 4), (1, 3)])
GUARD = 40


@pytest.fixture(autouse=True)
def poison():
    """Fresh memory is NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@dataclass
class Inputs:
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor

    def __iter__(self):
        return iter((self.q, self.k, self.v, self.g, self.beta))

    def doubled(self):
        return (x.double() for x in self)


@pytest.fixture
def inputs(numbers):
    """``inputs(rows, dim, key_heads, value_heads)``: unit keys, decays of every size, and NaN
    around everything."""
    generator = torch.Generator().manual_seed(5)
    unit = torch.nn.functional.normalize

    def guarded(*parts):
        """Columns of one buffer with rows and columns of NaN around them."""
        flat = [part.flatten(1) for part in parts]
        width = sum(part.shape[1] for part in flat)
        buffer = torch.full((flat[0].shape[0] + 2 * GUARD, width + 24), torch.nan)
        found, at = [], 8
        for part, values in zip(parts, flat, strict=True):
            view = buffer[GUARD:-GUARD, at : at + values.shape[1]]
            view.copy_(values)
            found.append(view.unflatten(1, part.shape[1:]))
            at += values.shape[1]
        return found

    def draw(rows, dim=32, key_heads=2, value_heads=4, value_dim=None):
        shape = (rows, value_heads)
        g = -torch.empty(shape).exponential_(5, generator=generator)
        g = torch.where(torch.rand(shape, generator=generator) < 0.1, 20 * g, g)
        q, k, v = guarded(
            unit(numbers(rows, key_heads, dim), dim=-1) * dim**-0.5,
            unit(numbers(rows, key_heads, dim), dim=-1),
            numbers(rows, value_heads, value_dim or dim),
        )
        return Inputs(q, k, v, *guarded(g, torch.rand(shape, generator=generator)))

    return draw


def fresh_state(numbers, rows, given, spare=2):
    """Numbers in the slots in use, NaN elsewhere."""
    slots = rows.slot_of_sequence.tolist()
    shape = (given.v.shape[1], given.v.shape[2], given.k.shape[2])
    state = torch.full((max(slots) + spare + 1, *shape), torch.nan)
    state[slots] = numbers(len(slots), *shape)
    return state


def check(rows, given, state, assert_near):
    """Compare outputs, states of certain parts, stores and trace; nothing else is written."""
    entry = state.clone()
    expected = state.double()
    outs, traces = reference.gated_delta(DELTA, *given.doubled(), expected, rows)
    out, trace = kernels.gated_delta(DELTA, *given, state, rows)
    assert_near(out, outs, OUT)
    moved = {s.slot for s in rows.segments if not s.drafted} | set(rows.store_slots.tolist())
    for slot in range(len(state)):
        if slot in moved:
            assert_near(state[slot].flatten(1), expected[slot].flatten(1), STATE)
        else:
            assert torch.equal(state[slot].view(torch.int32), entry[slot].view(torch.int32))
    assert (trace is None) == (traces is None)
    for segment in rows.segments:
        if segment.drafted:
            span = slice(segment.start, segment.stop)
            assert torch.equal(trace.k[span], given.k[span])
            if traces.d[span].any():
                assert_near(trace.d[span], traces.d[span], OUT)
            else:
                assert not trace.d[span].any()
            torch.testing.assert_close(trace.total[span], traces.total[span], rtol=1e-12, atol=0)
    return trace


# -- certain rows ---------------------------------------------------------------------------------


@HEADS
@pytest.mark.parametrize("dim", [32, 64, 128])
def test_single_rows_advance_their_states(
    steps, numbers, inputs, assert_near, dim, key_heads, value_heads
):
    rows = steps.build(*(steps.certain(9, 1) for _ in range(3)), slots=(4, 1, 2))
    given = inputs(3, dim, key_heads, value_heads)
    check(rows, given, fresh_state(numbers, rows, given), assert_near)


def test_a_value_dimension_of_its_own(steps, numbers, inputs, assert_near):
    rows = steps.build(steps.certain(9, 1), steps.certain(9, 5), steps.chain(9, 3))
    given = inputs(9, 32, 1, 2, value_dim=96)
    check(rows, given, fresh_state(numbers, rows, given), assert_near)


@pytest.mark.parametrize("length", [2, 3, 4, 5, 8, 21])
def test_slices(steps, numbers, inputs, assert_near, length):
    rows = steps.build(steps.certain(0, length))
    given = inputs(length, 32, 1, 2)
    check(rows, given, fresh_state(numbers, rows, given), assert_near)


@pytest.mark.parametrize(("dim", "key_heads", "value_heads"), [(64, 1, 3), (64, 2, 4), (128, 1, 1)])
def test_several_slices_of_wide_heads(
    steps, numbers, inputs, assert_near, dim, key_heads, value_heads
):
    rows = steps.build(steps.certain(0, 5), steps.certain(5, 2), slots=(1, 3))
    given = inputs(7, dim, key_heads, value_heads)
    check(rows, given, fresh_state(numbers, rows, given), assert_near)


@pytest.mark.parametrize("after", [1, 2, 4, 5, 8, 10])
def test_stores_hold_the_state_after_their_row(steps, numbers, inputs, assert_near, after):
    rows = steps.build(
        steps.certain(0, 10),
        steps.certain(3, 1),
        steps.certain(0, 3),
        stores=((after - 1, 4), (10, 6), (12, 5), (9, 7)),
    )
    given = inputs(14, 32, 1, 1)
    check(rows, given, fresh_state(numbers, rows, given, spare=4), assert_near)


# -- chunks of slices -----------------------------------------------------------------------------


def same_bits(a, b):
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


@pytest.mark.parametrize("first", range(2, 201, 25))
def test_slices_of_every_length_at_many_places(steps, numbers, inputs, assert_near, first):
    """They begin anywhere in a chunk, and fill it, end in it, or go on in the next ones."""
    lengths = range(first, min(first + 25, 201))
    rows = steps.build(*(steps.certain(11 * n % 64, n) for n in lengths))
    given = inputs(sum(lengths), 32, 1, 1)
    check(rows, given, fresh_state(numbers, rows, given), assert_near)


@pytest.mark.parametrize("start", [0, 1, 62, 63, 64])
@pytest.mark.parametrize("length", [2, 63, 64, 65, 66, 127, 128, 129])
def test_borders_of_chunks(steps, numbers, inputs, assert_near, start, length):
    rows = steps.build(steps.certain(64 + start, length))
    given = inputs(length, 32, 1, 1)
    check(rows, given, fresh_state(numbers, rows, given), assert_near)


@pytest.mark.parametrize(("key_heads", "value_heads"), [(1, 1), (1, 2), (1, 3), (4, 8), (3, 9)])
def test_heads_of_slices(steps, numbers, inputs, assert_near, key_heads, value_heads):
    rows = steps.build(steps.certain(50, 30))
    given = inputs(30, 32, key_heads, value_heads)
    check(rows, given, fresh_state(numbers, rows, given), assert_near)


def test_wide_slices(steps, numbers, inputs, assert_near):
    rows = steps.build(steps.certain(30, 120), steps.certain(0, 70))
    given = inputs(190, 128, 1, 2)
    check(rows, given, fresh_state(numbers, rows, given), assert_near)


def test_the_error_of_a_long_slice_does_not_grow(steps, numbers, inputs, assert_near):
    rows = steps.build(steps.certain(0, 700))
    given = inputs(700, 32, 1, 1)
    given.g.mul_(1e-3)
    check(rows, given, fresh_state(numbers, rows, given), assert_near)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_values_of_any_size(steps, numbers, inputs, assert_near, scale):
    """They are scaled before they are split into float16."""
    rows = steps.build(steps.certain(5, 150))
    given = inputs(150, 32, 1, 1)
    given.v.mul_(scale)
    state = fresh_state(numbers, rows, given) * scale
    check(rows, given, state, assert_near)


def test_a_slice_from_an_empty_state(steps, numbers, inputs, assert_near):
    rows = steps.build(steps.certain(0, 100))
    given = inputs(100, 32, 1, 1)
    given.beta[:70] = 0
    state = fresh_state(numbers, rows, given)
    state[1] = 0
    check(rows, given, state, assert_near)


def with_tile(monkeypatch, **changes):
    tile = replace(chunk_tile(SMALL_SHARED), **changes)
    monkeypatch.setattr(kernels, "chunk_tile", lambda shared, paired: tile)


@pytest.mark.parametrize("start", [0, 57])
def test_chunks_inverted_as_a_whole(steps, numbers, inputs, assert_near, monkeypatch, start):
    with_tile(monkeypatch, batched=False)
    rows = steps.build(steps.certain(start, 150))
    given = inputs(150, 32, 1, 2)
    check(rows, given, fresh_state(numbers, rows, given), assert_near)


@pytest.mark.parametrize("decay", [1.0, 1e-3])
@pytest.mark.parametrize("batched", [True, False])
def test_products_in_one_pass_have_the_error_of_float16(
    steps, numbers, inputs, monkeypatch, batched, decay
):
    with_tile(monkeypatch, paired=False, batched=batched)
    rows = steps.build(steps.certain(30, 200))
    given = inputs(200, 64, 1, 2)
    given.g.mul_(decay)
    state = fresh_state(numbers, rows, given)
    expected = state.double()
    outs, _ = reference.gated_delta(DELTA, *given.doubled(), expected, rows)
    out = run(rows, given, state)
    assert (out - outs).norm() <= ONE_PASS * outs.norm()
    assert (state[1] - expected[1]).norm() <= ONE_PASS * expected[1].norm()


def run(rows, given, state, span=None):
    """Outputs of a step of the rows ``span`` of some inputs."""
    part = given if span is None else [x[span] for x in given]
    return kernels.gated_delta(DELTA, *part, state, rows)[0]


@pytest.mark.parametrize(
    ("start", "cuts"), [(0, (64, 128)), (17, (47, 111)), (63, (1,)), (5, (59, 187))]
)
def test_a_slice_resumed_at_a_chunk_has_the_bits_of_the_whole(steps, numbers, inputs, start, cuts):
    length = 190
    whole = steps.build(steps.certain(start, length))
    given = inputs(length, 32, 1, 2)
    entry = fresh_state(numbers, whole, given)
    state = entry.clone()
    out = run(whole, given, state)
    parts = entry.clone()
    for begin, end in zip((0, *cuts), (*cuts, length), strict=True):
        if end - begin > 1:
            step = steps.build(steps.certain(start + begin, end - begin))
            assert same_bits(run(step, given, parts, slice(begin, end)), out[begin:end])
        else:
            # One row is advanced by a kernel of its own; here it is made the first of two.
            step = steps.build(steps.certain(start + begin, end - begin + 1))
            limited = replace(
                step.layout, slices=torch.tensor([[0, 1, 1]], dtype=torch.int32), segments=()
            )
            found = run(replace(step, layout=limited), given, parts, slice(begin, end + 1))
            assert same_bits(found[:1], out[begin:end])
    assert same_bits(parts[1], state[1])


def test_checkpoints_change_nothing_else(steps, numbers, inputs, assert_near):
    """At the ends of chunks, inside them, at the first and at the last row."""
    places = [0, 13, 46, 47, 100, 110, 111, 112, 149]
    stores = tuple((row, 2 + index) for index, row in enumerate(places))
    rows = steps.build(steps.certain(17, 150), stores=stores)
    given = inputs(150, 32, 1, 2)
    entry = fresh_state(numbers, rows, given, spare=len(places))
    state = entry.clone()
    check(rows, given, state, assert_near)
    plain = entry.clone()
    out = run(steps.build(steps.certain(17, 150)), given, plain)
    stored = entry.clone()
    assert same_bits(run(rows, given, stored), out)
    assert same_bits(stored[1], plain[1])
    # The checkpoint at the end of a chunk is what the slice would go on from.
    cut = entry.clone()
    run(steps.build(steps.certain(17, 111)), given, cut, slice(0, 111))
    assert same_bits(stored[2 + places.index(110)], cut[1])


def test_slices_in_company_and_padding_have_the_bits_that_they_have_alone(steps, numbers, inputs):
    parts = (
        steps.certain(3, 1),
        steps.certain(40, 100),
        steps.chain(9, 3),
        steps.certain(0, 2),
        steps.certain(64, 64),
    )
    together = steps.build(*parts, slots=(4, 2, 5, 1, 3))
    given = inputs(170, 32, 1, 2)
    entry = fresh_state(numbers, together, given)
    padding = torch.tensor([[0, 0, 0]], dtype=torch.int32)
    table = together.layout.slices
    padded = torch.cat([padding, table[:1], padding, padding, table[1:], padding])
    state = entry.clone()
    step = replace(together, layout=replace(together.layout, slices=padded))
    out = run(step, given, state)
    assert state[0].isnan().all()
    for index in (1, 3, 4):
        segment = together.segments[index]
        alone = steps.build(parts[index], slots=(1,))
        own = entry[[0, segment.slot]].clone()
        span = slice(segment.start, segment.stop)
        assert same_bits(run(alone, given, own, span), out[span])
        assert same_bits(own[1], state[segment.slot])


@pytest.mark.parametrize("most", [1, 3])
def test_chunks_in_several_launches_have_the_same_bits(steps, numbers, inputs, most):
    parts = (steps.certain(40, 100), steps.certain(0, 2), steps.certain(64, 130))
    rows = steps.build(*parts, stores=((63, 4), (87, 5), (200, 6)))
    given = inputs(232, 32, 1, 1)
    entry = fresh_state(numbers, rows, given, spare=4)
    state, again = entry.clone(), entry.clone()
    expected = run(rows, given, state)
    out = torch.empty_like(expected)
    delta = launches.DeltaInputs(*given, again)
    for launch in launches.slices(delta, out, rows, chunk_tile(SMALL_SHARED), most):
        launch.run()
    assert same_bits(out, expected)
    assert same_bits(again, state)


# -- drafted rows ---------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 4, 5, 15, 16, 17, 32, 33, 64])
def test_chains(steps, numbers, inputs, assert_near, length):
    rows = steps.build(steps.chain(0, length))
    given = inputs(length, 32, 1, 2)
    check(rows, given, fresh_state(numbers, rows, given), assert_near)


@HEADS
@pytest.mark.parametrize(("dim", "size"), [(32, 64), (64, 31), (128, 16)])
def test_trees(steps, numbers, inputs, assert_near, dim, size, key_heads, value_heads):
    rows = steps.build(steps.random_tree(64, size, seed=size), steps.tree(3, [-1, 0, 0, 2]))
    given = inputs(size + 4, dim, key_heads, value_heads)
    check(rows, given, fresh_state(numbers, rows, given), assert_near)


@HEADS
@pytest.mark.parametrize("dim", [32, 64, 128])
def test_segments_of_few_rows(steps, numbers, inputs, assert_near, dim, key_heads, value_heads):
    parts = (steps.chain(9, 4), steps.tree(3, [-1, -1, 0, 0]), steps.chain(9, 1), steps.chain(2, 3))
    rows = steps.build(*parts, slots=(4, 1, 2, 3))
    assert rows.layout.traits.draft_rows == FEW_ROWS.value
    given = inputs(12, dim, key_heads, value_heads)
    state = fresh_state(numbers, rows, given)
    trace = check(rows, given, state, assert_near)
    check_commit(rows, given, state, trace, [[0, 1, 2, 3], [0, 3], [0], []], assert_near)


@pytest.mark.parametrize("few", [1, 3, 4])
def test_few_rows_beside_many_have_the_bits_that_they_have_alone(steps, numbers, inputs, few):
    """They are computed by another program then, with a larger tile."""
    rows = steps.build(steps.chain(9, 6), steps.tree(3, [-1, 0, 0, 2][:few]), slots=(1, 2))
    alone = steps.build(steps.tree(3, [-1, 0, 0, 2][:few]), slots=(2,))
    given = inputs(6 + few, 64, 1, 2)
    state = fresh_state(numbers, rows, given)
    out, trace = kernels.gated_delta(DELTA, *given, state, rows)
    own = Inputs(*(x[6:] for x in given))
    found, traced = kernels.gated_delta(DELTA, *own, state, alone)
    assert same_bits(found, out[6:])
    assert same_bits(traced.d, trace.d[6:])
    assert torch.equal(traced.total, trace.total[6:])


def test_prepared_rows_beside_more_have_the_bits_that_they_have_alone(steps, numbers, inputs):
    """What is prepared for each of them is in a place of its own."""
    sizes = (17, 33, 18, 3, 32)
    parts = [steps.random_tree(9, size, seed=size) for size in sizes]
    rows = steps.build(*parts)
    given = inputs(sum(sizes), 32, 1, 2)
    state = fresh_state(numbers, rows, given)
    out, trace = kernels.gated_delta(DELTA, *given, state, rows)
    for index, part in enumerate(parts):
        span, slot = rows.span(index), rows.segments[index].slot
        alone = steps.build(part, slots=(slot,))
        found, traced = kernels.gated_delta(DELTA, *(x[span] for x in given), state, alone)
        assert same_bits(found, out[span])
        assert same_bits(traced.d, trace.d[span])
        assert torch.equal(traced.k, trace.k[span])
        assert torch.equal(traced.total, trace.total[span])


@pytest.mark.parametrize("length", [4, 6, 18, 34])
def test_a_later_row_changes_no_bit(steps, numbers, inputs, length):
    rows = steps.build(steps.chain(9, length))
    given = inputs(length, 32, 1, 2)
    state = fresh_state(numbers, rows, given)
    out, trace = kernels.gated_delta(DELTA, *given, state, rows)
    for x in given:
        x[-1] *= 100
    again, traced = kernels.gated_delta(DELTA, *given, state, rows)
    assert not same_bits(again[-1], out[-1])
    assert same_bits(again[:-1], out[:-1])
    assert same_bits(traced.d[:-1], trace.d[:-1])


def test_several_roots(steps, numbers, inputs, assert_near):
    rows = steps.build(steps.tree(64, [-1, -1, 0, 1, 1, -1, 5]))
    given = inputs(7)
    check(rows, given, fresh_state(numbers, rows, given), assert_near)


# -- everything together --------------------------------------------------------------------------


def test_a_ragged_step_of_everything(steps, numbers, inputs, assert_near):
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
    given = inputs(len(rows.positions), 32, 1, 2)
    check(rows, given, fresh_state(numbers, rows, given, spare=4), assert_near)


def test_sequences_of_no_rows_are_padding(steps, numbers, inputs, assert_near):
    """Captured graphs have such padding: no segment, but a place in the layout."""
    rows = steps.build(steps.certain(5, 1), steps.chain(9, 3))
    padding = torch.tensor([[0, 0, 0, 0], [0, 0, 0, 1]], dtype=torch.int32)
    layout = replace(rows.layout, spans=torch.cat([rows.layout.spans, padding]))
    given = inputs(4)
    state = fresh_state(numbers, rows, given)
    expected = state.double()
    outs, _ = reference.gated_delta(DELTA, *given.doubled(), expected, rows)
    out, _ = kernels.gated_delta(DELTA, *given, state, replace(rows, layout=layout))
    assert_near(out, outs, OUT)
    assert state[0].isnan().all()


# -- extremes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["slice", "chain"])
@pytest.mark.parametrize("decay", [0.0, -20.0, -1e4])
def test_decays_from_none_to_total(steps, numbers, inputs, assert_near, decay, kind):
    part = steps.chain(0, 40) if kind == "chain" else steps.certain(0, 40)
    rows, given = steps.build(part), inputs(40, 32, 1, 1)
    given.g.fill_(decay)
    check(rows, given, fresh_state(numbers, rows, given), assert_near)


@pytest.mark.parametrize("kind", ["slice", "chain"])
@pytest.mark.parametrize("decay", [-20.0, -1e4])
def test_what_follows_a_hard_reset_keeps_its_precision(
    steps, numbers, inputs, assert_near, decay, kind
):
    part = steps.chain(0, 40) if kind == "chain" else steps.certain(0, 40)
    rows, given = steps.build(part), inputs(40, 32, 1, 1)
    given.g[::7] = decay
    state = fresh_state(numbers, rows, given)
    entry = state.clone()
    trace = check(rows, given, state, assert_near)
    if trace is not None:
        check_commit(rows, given, entry, trace, [list(range(40))], assert_near)


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_rates_at_their_ends(steps, numbers, inputs, assert_near, beta):
    rows = steps.build(steps.certain(0, 33), steps.random_tree(3, 20), steps.certain(3, 1))
    given = inputs(54, 32, 1, 1)
    given.beta.fill_(beta)
    check(rows, given, fresh_state(numbers, rows, given), assert_near)


def test_equal_keys_at_full_rate_do_not_blow_up(steps, numbers, inputs, assert_near):
    """Powers of the system would grow as binomials of 64 here; its inverse has entries of 1."""
    rows = steps.build(steps.certain(0, 64), steps.chain(0, 64))
    given = inputs(128, 32, 1, 1)
    given.k.copy_(given.k[:1].expand_as(given.k).clone())
    given.g.zero_()
    given.beta.fill_(1)
    check(rows, given, fresh_state(numbers, rows, given), assert_near)


def test_a_neighbour_with_nan_spoils_nobody(steps, numbers, inputs):
    parts = (steps.certain(0, 1), steps.chain(0, 3), steps.certain(0, 4), steps.chain(0, 4))
    rows = steps.build(*parts, slots=(1, 2, 3, 4))
    given = inputs(12)
    given.v[:4] = torch.nan
    state = fresh_state(numbers, rows, given)
    out, trace = kernels.gated_delta(DELTA, *given, state, rows)
    assert out[:4].isnan().any()
    assert out[4:].isfinite().all()
    assert trace.d[8:].isfinite().all()
    assert state[3].isfinite().all()


# -- commit ---------------------------------------------------------------------------------------


def commit_arguments(rows, kept, parts=None):
    """path [D, T] padded with -1, n_keep [D], slot [D]; one column more than the longest."""
    segments = [rows.segments[index] for index in (parts or range(len(kept)))]
    path = torch.full((len(kept), max(map(len, kept)) + 1), -1)
    for index, (segment, chosen) in enumerate(zip(segments, kept, strict=True)):
        path[index, : len(chosen)] = torch.tensor(chosen, dtype=torch.int64) + segment.start
    return path, torch.tensor([len(k) for k in kept]), torch.tensor([s.slot for s in segments])


def check_commit(rows, given, state, trace, kept, assert_near, parts=None):
    """Slots of the sequences that keep something follow the reference; others stay as they are."""
    entry = state.clone()
    arguments = commit_arguments(rows, kept, parts)
    moves = arguments[1] > 0
    expected, traces = (
        state.double(),
        reference.gated_delta(DELTA, *given.doubled(), entry.double(), rows),
    )
    reference.gated_delta_commit(DELTA, [(traces[1], expected)], *(x[moves] for x in arguments))
    kernels.gated_delta_commit(DELTA, [(trace, state)], *arguments)
    for slot in range(len(state)):
        if slot in arguments[2][moves].tolist():
            assert_near(state[slot].flatten(1), expected[slot].flatten(1), STATE)
        else:
            assert torch.equal(state[slot].view(torch.int32), entry[slot].view(torch.int32))


@HEADS
def test_a_commit_equals_feeding_the_kept_rows(
    steps, numbers, inputs, assert_near, key_heads, value_heads
):
    rows = steps.build(
        steps.chain(5, 18),
        steps.certain(0, 3),
        steps.random_tree(64, 40, seed=2),
        steps.tree(3, [-1, 0, 0, 2, 1, 4]),
        steps.chain(9, 1),
        slots=(4, 1, 2, 6, 3),
    )
    given = inputs(len(rows.positions), 64, key_heads, value_heads)
    state = fresh_state(numbers, rows, given)
    trace = check(rows, given, state, assert_near)
    state[1] = torch.nan
    kept = {0: list(range(17)), 2: rows.parts[2].path(39), 3: [0, 1, 4], 4: []}
    check_commit(rows, given, state, trace, list(kept.values()), assert_near, [*kept])


@pytest.mark.parametrize("kept", [1, 7, 8, 9, 17])
def test_a_commit_has_the_same_bits_in_company(steps, numbers, inputs, kept):
    """Beside a longer path, which makes its own one wider, and in another place."""
    rows = steps.build(steps.chain(5, 20), steps.chain(5, 18), slots=(2, 1))
    given = inputs(38, 32, 1, 2)
    entry = fresh_state(numbers, rows, given)
    _, trace = kernels.gated_delta(DELTA, *given, entry, rows)
    state, alone = entry.clone(), entry.clone()
    chosen = list(range(kept))
    arguments = commit_arguments(rows, [list(range(20)), chosen])
    kernels.gated_delta_commit(DELTA, [(trace, state)], *arguments)
    kernels.gated_delta_commit(DELTA, [(trace, alone)], *commit_arguments(rows, [chosen], [1]))
    assert same_bits(alone[1], state[1])
    assert same_bits(alone[2], entry[2])


@pytest.mark.parametrize("count", [2, 8, 9])
def test_layers_are_committed_together_as_each_alone(steps, numbers, inputs, count):
    """Of one launch, or two: layers of 9 have other tensors in every argument of the kernel."""
    rows = steps.build(steps.chain(5, 4), steps.certain(0, 1), steps.chain(5, 2), slots=(2, 3, 1))
    arguments = commit_arguments(rows, [[0, 1, 2], [0]], [0, 2])
    together, alone = [], []
    for _ in range(count):
        given = inputs(7, 32, 1, 2)
        state = fresh_state(numbers, rows, given)
        _, trace = kernels.gated_delta(DELTA, *given, state, rows)
        together.append((trace, state))
        alone.append(state.clone())
        kernels.gated_delta_commit(DELTA, [(trace, alone[-1])], *arguments)
    kernels.gated_delta_commit(DELTA, together, *arguments)
    for (_, state), expected in zip(together, alone, strict=True):
        assert same_bits(state, expected)


def test_a_commit_reads_kept_rows_only(steps, numbers, inputs):
    rows = steps.build(steps.chain(0, 4), steps.chain(0, 4))
    given = inputs(8)
    state = fresh_state(numbers, rows, given)
    _, trace = kernels.gated_delta(DELTA, *given, state, rows)
    for left in (trace.k, trace.d, trace.total):
        left[:4], left[6:] = torch.nan, torch.nan
    kernels.gated_delta_commit(
        DELTA, [(trace, state)], *commit_arguments(rows, [[0, 1, 2, 3], [0, 1]])
    )
    assert state[1].isfinite().all()
    assert state[2].isnan().any()


# -- the index ------------------------------------------------------------------------------------


def test_the_layout_says_which_rows_belong_to_which_sequence(steps):
    rows = steps.build(
        steps.certain(0, 33),
        steps.tree(3, [-1, 0, 0, 2, 1]),
        steps.certain(4, 1),
        steps.chain(9, 3),
        slots=(5, 1, 2, 7),
    )
    layout = rows.layout
    first = 33
    assert layout.spans.tolist() == [
        [0, first, 5, 0],
        [first, 5, 1, 1],
        [first + 5, 1, 2, 0],
        [first + 6, 3, 7, 1],
    ]
    assert layout.path[first : first + 5].tolist() == [0b1, 0b11, 0b101, 0b1101, 0b10011]
    assert layout.path[first + 6 :].tolist() == [0b1, 0b11, 0b111]
    assert layout.slices.tolist() == [[0, first, 5]]
    assert layout.traits.single_rows
    assert layout.traits.draft_rows == 5
    assert (layout.short.tolist(), layout.long.tolist()) == ([0, 1, 2, 3], [])


def test_a_path_of_64_rows_has_64_bits(steps):
    rows = steps.build(steps.chain(3, 2), steps.chain(0, 64))
    path = rows.layout.path[2:].tolist()
    assert path == [(1 << row + 1) - 1 for row in range(63)] + [-1]


# -- unsupported arguments ------------------------------------------------------------------------


def test_refusals_say_why():
    def refusal(**changes):
        return kernels.supports(replace(DELTA, **changes)).reason

    assert refusal() == ""
    assert refusal(key_dim=96) == "key dimension 96 is none of (32, 64, 128)"
    assert refusal(value_dim=40) == "value dimension 40 is no multiple of 32"
    assert refusal(value_heads=40) == "40 value heads are no multiple of 16 key heads"
