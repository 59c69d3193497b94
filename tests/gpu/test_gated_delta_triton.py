"""The gated delta kernels on the GPU: the heads of released models against float64, the same bits
every time, in company and in a graph."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
import torch

from kinfolk_kernels.device import SMALL_SHARED
from kinfolk_kernels.gated_delta import launches
from kinfolk_kernels.gated_delta import op as reference
from kinfolk_kernels.gated_delta import triton_backend as kernels
from kinfolk_kernels.gated_delta.op import GatedDeltaArguments
from kinfolk_kernels.gated_delta.tiles import TILES, chunk_tile
from kinfolk_kernels.gated_delta.triton_backend import gated_delta, gated_delta_commit
from kinfolk_kernels.row_layout import RowLayout

DELTA = GatedDeltaArguments(16, 48, 128, 128, torch.float32, torch.device("cuda"))

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

# (relative L2 of a row and head, largest error / rms): the bounds of float32 elsewhere. Products
# of drafts in three passes of tf32 lose little against it; one would lose a thousand times as much.
# The largest number of a state is 130 times the root mean square of all. Twenty roundings to 2^-24,
# four of them for the exponential of a decay, come to 1.5e-4 there and in outputs that read it.
OUT = (6e-5, 1.5e-4)
STATE = (5e-6, 1.5e-4)
LONG = (2e-3, 1.5e-4)
"""Of some thousands of rows some cancel: the definition itself, in float32 and row by row, is off
by 4.5e-4 of the smallest of 98 304 outputs."""

ONE_PASS = 1e-3
"""Of all numbers together, where products have the eleven bits of float16."""

NARROW = (4e-3, 8e-2)
"""One rounding of outputs to bfloat16."""

KEY_HEADS, VALUE_HEADS, DIM = 16, 48, 128
FEWER = 32
"""Value heads of the smaller model; the rest is equal."""


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

    def rows(self, span):
        return Inputs(*(x[span] for x in self))


@pytest.fixture
def inputs(numbers):
    """``inputs(rows, value_heads)`` on the device; q, k and v are views of one tensor."""
    generator = torch.Generator().manual_seed(5)
    unit = torch.nn.functional.normalize

    def draw(rows, value_heads=VALUE_HEADS, dtype=torch.float32):
        keys, shape = KEY_HEADS * DIM, (rows, value_heads)
        g = -torch.empty(shape).exponential_(5, generator=generator)
        g = torch.where(torch.rand(shape, generator=generator) < 0.1, 20 * g, g).cuda()
        mixed = numbers(rows, 2 * keys + value_heads * DIM).cuda()
        q, k, v = mixed.split((keys, keys, value_heads * DIM), 1)
        for part, scale in ((q, DIM**-0.5), (k, 1.0)):
            heads = part.unflatten(1, (KEY_HEADS, DIM))
            heads.copy_(unit(heads, dim=-1) * scale)
        q, k, v = (
            x.unflatten(1, (-1, DIM)) for x in mixed.to(dtype).split((keys, keys, v.shape[1]), 1)
        )
        return Inputs(q, k, v, g, torch.rand(shape, generator=generator).cuda())

    return draw


def fresh_state(numbers, rows, value_heads=VALUE_HEADS, spare=2):
    """Numbers in the slots in use, NaN elsewhere."""
    slots = rows.slot_of_sequence.tolist()
    shape = (value_heads, DIM, DIM)
    state = torch.full((max(slots) + spare + 1, *shape), torch.nan, device="cuda")
    for slot in slots:
        state[slot] = numbers(*shape).cuda()
    return state


def same_bits(a, b):
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


def check(rows, given, state, assert_near, poisoned, bound=OUT):
    """Outputs, states of certain parts, stores and trace; nothing else moves."""
    entry, expected = state.clone(), state.double()
    outs, traces = reference.gated_delta(DELTA, *given.doubled(), expected, rows)
    with poisoned():
        out, trace = gated_delta(DELTA, *given, state, rows)
    assert_near(out, outs, bound)
    moved = {s.slot for s in rows.segments if not s.drafted} | set(rows.store_slots.tolist())
    for slot in range(len(state)):
        if slot in moved:
            assert_near(state[slot].flatten(1), expected[slot].flatten(1), STATE)
        else:
            assert same_bits(state[slot], entry[slot])
    for segment in rows.segments:
        if segment.drafted:
            span = slice(segment.start, segment.stop)
            assert torch.equal(trace.k[span], given.k[span].float())
            assert_near(trace.d[span], traces.d[span], OUT)
            torch.testing.assert_close(trace.total[span], traces.total[span], rtol=1e-12, atol=0)
    return trace


def commit_arguments(rows, kept):
    """Of {part: kept rows}: path [D, T] padded with -1, n_keep [D], slot [D]."""
    path = torch.full((len(kept), max(map(len, kept.values())) + 1), -1)
    segments = [rows.segments[part] for part in kept]
    for index, (segment, chosen) in enumerate(zip(segments, kept.values(), strict=True)):
        path[index, : len(chosen)] = torch.tensor(chosen) + segment.start
    n_keep = torch.tensor([len(chosen) for chosen in kept.values()])
    return path.cuda(), n_keep.cuda(), torch.tensor([s.slot for s in segments]).cuda()


# -- against float64 ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sequences", "heads"), [(1, VALUE_HEADS), (4, VALUE_HEADS), (16, VALUE_HEADS), (4, FEWER)]
)
def test_single_rows(steps, numbers, inputs, on_gpu, assert_near, poisoned, sequences, heads):
    rows = on_gpu(steps.build(*(steps.certain(9, 1) for _ in range(sequences))))
    given = inputs(sequences, heads)
    check(rows, given, fresh_state(numbers, rows, heads), assert_near, poisoned)


@pytest.mark.parametrize(
    ("kind", "sequences", "size", "heads"),
    [
        ("chain", 1, 2, VALUE_HEADS),
        ("chain", 1, 4, VALUE_HEADS),
        ("tree", 3, 3, FEWER),
        ("chain", 1, 8, VALUE_HEADS),
        ("chain", 1, 16, VALUE_HEADS),
        ("tree", 1, 16, VALUE_HEADS),
        ("chain", 3, 17, VALUE_HEADS),
        ("tree", 2, 24, FEWER),
        ("tree", 1, 32, VALUE_HEADS),
        ("tree", 1, 33, VALUE_HEADS),
        ("chain", 1, 64, VALUE_HEADS),
        ("tree", 1, 64, VALUE_HEADS),
        ("chain", 4, 16, VALUE_HEADS),
        ("tree", 16, 4, VALUE_HEADS),
        ("tree", 4, 16, FEWER),
    ],
)
def test_drafts_and_their_commit(
    steps, numbers, inputs, on_gpu, assert_near, poisoned, kind, sequences, size, heads
):
    parts = [
        steps.chain(9, size) if kind == "chain" else steps.random_tree(64, size, seed=seed)
        for seed in range(sequences)
    ]
    rows = on_gpu(steps.build(*parts))
    given, state = inputs(sequences * size, heads), fresh_state(numbers, rows, heads)
    trace = check(rows, given, state, assert_near, poisoned)
    kept = {index: part.path(size - 1) for index, part in enumerate(parts)}
    arguments = commit_arguments(rows, kept)
    expected = state.double()
    _, traces = reference.gated_delta(DELTA, *given.doubled(), expected, rows)
    reference.gated_delta_commit(DELTA, [(traces, expected)], *arguments)
    gated_delta_commit(DELTA, [(trace, state)], *arguments)
    for slot in rows.slot_of_sequence.tolist():
        assert_near(state[slot].flatten(1), expected[slot].flatten(1), STATE)


@pytest.mark.parametrize(
    ("lengths", "heads"),
    [
        ((2,), VALUE_HEADS),
        ((64,), VALUE_HEADS),
        ((65, 3, 100), VALUE_HEADS),
        ((600,), VALUE_HEADS),
        ((65, 3, 100), FEWER),
        ((63, 2, 33, 127, 128, 129, 17, 190), VALUE_HEADS),
        ((16, 300, 62), FEWER),
    ],
)
@pytest.mark.parametrize("context", [0, 37])
def test_slices(steps, numbers, inputs, on_gpu, assert_near, poisoned, lengths, heads, context):
    middle = lengths[0] // 2
    stores = ((middle, len(lengths) + 1), (lengths[0] - 1, len(lengths) + 2))
    parts = (steps.certain(index * context, n) for index, n in enumerate(lengths, 1))
    rows = on_gpu(steps.build(*parts, stores=stores))
    given = inputs(sum(lengths), heads)
    bound = LONG if max(lengths) > 100 else OUT
    check(rows, given, fresh_state(numbers, rows, heads), assert_near, poisoned, bound)


def test_slices_of_every_length_at_many_places(
    steps, numbers, inputs, on_gpu, assert_near, poisoned
):
    """Every length up to 134, each at another place of a chunk."""
    for first in range(2, 135, 19):
        lengths = range(first, first + 19)
        rows = on_gpu(steps.build(*(steps.certain(11 * n % 64, n) for n in lengths)))
        given = inputs(sum(lengths), FEWER)
        check(rows, given, fresh_state(numbers, rows, FEWER), assert_near, poisoned, LONG)


@pytest.mark.parametrize("fall", [1.0, 1e-4])
def test_the_error_of_a_long_slice_does_not_grow(
    steps, numbers, inputs, on_gpu, assert_near, poisoned, fall
):
    """The reference keeps the state after every row, 4 MB each."""
    rows = on_gpu(steps.build(steps.certain(0, 4096), stores=((2047, 2),)))
    given = inputs(4096, FEWER)
    given.g.mul_(fall)
    check(rows, given, fresh_state(numbers, rows, FEWER), assert_near, poisoned, LONG)


def everything(steps):
    return steps.build(
        steps.certain(5, 1),
        steps.chain(9, 6),
        steps.certain(0, 66),
        steps.random_tree(64, 31),
        steps.certain(7, 1),
        steps.tree(3, [-1, 0, 0, 0, 1, 4, 5]),
        steps.chain(9, 1),
        slots=(3, 7, 1, 2, 9, 4, 6),
        stores=((0, 10), (9, 11), (70, 8)),
    )


@pytest.mark.parametrize("heads", [FEWER, VALUE_HEADS])
@pytest.mark.parametrize("decay", [1.0, 1e-3])
def test_slices_of_models_in_bfloat16_have_the_error_of_float16(
    steps, numbers, inputs, on_gpu, heads, decay
):
    delta = dataclasses.replace(DELTA, dtype=torch.bfloat16)
    rows = on_gpu(steps.build(steps.certain(30, 1500), steps.certain(0, 70), steps.certain(64, 5)))
    given = inputs(1575, heads)
    given.g.mul_(decay)
    entry = fresh_state(numbers, rows, heads)
    state, expected = entry.clone(), entry.double()
    outs, _ = reference.gated_delta(DELTA, *given.doubled(), expected, rows)
    out, _ = gated_delta(delta, *given, state, rows)
    assert float((out - outs).norm() / outs.norm()) <= ONE_PASS
    for slot in rows.slot_of_sequence.tolist():
        assert float((state[slot] - expected[slot]).norm() / expected[slot].norm()) <= ONE_PASS
    # A slice that is resumed at a chunk has the bits of the whole.
    slot = rows.segments[0].slot
    own = entry[[0, slot]].clone()
    for start, stop in ((0, 98), (98, 1500)):
        part = on_gpu(steps.build(steps.certain(30 + start, stop - start), slots=(1,)))
        found, _ = gated_delta(delta, *given.rows(slice(start, stop)), own, part)
        assert same_bits(found, out[start:stop])
    assert same_bits(own[1], state[slot])


def test_a_ragged_step_of_everything(steps, numbers, inputs, on_gpu, assert_near, poisoned):
    rows = on_gpu(everything(steps))
    given = inputs(len(rows.positions))
    check(rows, given, fresh_state(numbers, rows), assert_near, poisoned)


def test_rows_in_bfloat16(steps, numbers, inputs, on_gpu, assert_near, poisoned):
    """They are widened when they are read; only outputs are rounded."""
    rows = on_gpu(everything(steps))
    given = inputs(len(rows.positions), dtype=torch.bfloat16)
    check(rows, given, fresh_state(numbers, rows), assert_near, poisoned, NARROW)


@pytest.mark.parametrize("kind", ["slice", "chain"])
@pytest.mark.parametrize("decay", [0.0, -20.0, -1e4])
def test_hard_resets_keep_their_precision(
    steps, numbers, inputs, on_gpu, assert_near, poisoned, decay, kind
):
    rows = on_gpu(steps.build(steps.chain(0, 60) if kind == "chain" else steps.certain(0, 60)))
    given = inputs(60)
    given.g[::7] = decay
    check(rows, given, fresh_state(numbers, rows), assert_near, poisoned)


def test_equal_keys_at_full_rate_do_not_blow_up(
    steps, numbers, inputs, on_gpu, assert_near, poisoned
):
    rows = on_gpu(steps.build(steps.certain(0, 64), steps.chain(0, 64)))
    given = inputs(128)
    given.k.copy_(given.k[:1].clone().expand_as(given.k))
    given.g.zero_()
    given.beta.fill_(1)
    check(rows, given, fresh_state(numbers, rows), assert_near, poisoned)


# -- the same bits --------------------------------------------------------------------------------


def test_twenty_runs_give_the_same_bits(steps, numbers, inputs, on_gpu):
    rows = on_gpu(everything(steps))
    given, entry = inputs(len(rows.positions)), fresh_state(numbers, rows)
    first = None
    for _ in range(20):
        state = entry.clone()
        out, trace = gated_delta(DELTA, *given, state, rows)
        span = slice(rows.segments[3].start, rows.segments[3].stop)
        found = (out, state, trace.d[span], trace.total[span].float())
        first = first or found
        assert all(same_bits(a, b) for a, b in zip(found, first, strict=True))


def test_company_changes_no_bit(steps, numbers, inputs, on_gpu):
    """A sequence beside others, in any slot, gets the results that it gets alone."""
    together = on_gpu(everything(steps))
    given, entry = inputs(len(together.positions)), fresh_state(numbers, together)
    state = entry.clone()
    out, _ = gated_delta(DELTA, *given, state, together)
    for index, part in enumerate(together.parts):
        alone = on_gpu(steps.build(part, slots=(1,)))
        own = entry[[0, together.segments[index].slot]].clone()
        found, _ = gated_delta(DELTA, *given.rows(together.span(index)), own, alone)
        assert same_bits(found, out[together.span(index)])
        assert same_bits(own[1], state[together.segments[index].slot])


def test_few_drafted_rows_beside_many_have_the_bits_that_they_have_alone(
    steps, numbers, inputs, on_gpu
):
    """They are computed by another program then, with a larger tile."""
    few = (steps.chain(9, 16), steps.chain(5, 4), steps.random_tree(64, 3), steps.chain(9, 1))
    parts = (steps.chain(7, 64), steps.chain(9, 20), steps.random_tree(64, 32), *few)
    together = on_gpu(steps.build(*parts))
    given, state = inputs(len(together.positions)), fresh_state(numbers, together)
    out, trace = gated_delta(DELTA, *given, state, together)
    for index in range(1, len(parts)):
        span, slot = together.span(index), together.segments[index].slot
        alone = on_gpu(steps.build(parts[index], slots=(slot,)))
        found, traced = gated_delta(DELTA, *given.rows(span), state, alone)
        assert same_bits(found, out[span])
        assert same_bits(traced.d, trace.d[span])


def sliced(rows, given, state, span):
    return gated_delta(DELTA, *given.rows(span), state, rows)[0]


@pytest.mark.parametrize("start", [0, 17])
def test_a_slice_resumed_at_a_chunk_has_the_bits_of_the_whole(
    steps, numbers, inputs, on_gpu, start
):
    """In one step, in several, with checkpoints and without."""
    length, cuts = 1100, (64 - start, 192 - start, 1024 - start)
    stores = tuple((cut - 1, 2 + index) for index, cut in enumerate(cuts))
    stores += ((100, 5), (300, 6))
    whole = on_gpu(steps.build(steps.certain(start, length), stores=stores))
    given = inputs(length)
    entry = fresh_state(numbers, whole, spare=6)
    state, plain, parts = entry.clone(), entry.clone(), entry.clone()
    out = sliced(whole, given, state, slice(0, length))
    bare = on_gpu(steps.build(steps.certain(start, length)))
    assert same_bits(sliced(bare, given, plain, slice(0, length)), out)
    assert same_bits(plain[1], state[1])
    for begin, end in zip((0, *cuts), (*cuts, length), strict=True):
        step = on_gpu(steps.build(steps.certain(start + begin, end - begin)))
        assert same_bits(sliced(step, given, parts, slice(begin, end)), out[begin:end])
        if end in cuts:
            assert same_bits(parts[1], state[2 + cuts.index(end)])
    assert same_bits(parts[1], state[1])


def test_layers_are_committed_together_as_each_alone(steps, numbers, inputs, on_gpu):
    rows = on_gpu(steps.build(steps.chain(9, 16), steps.chain(5, 4)))
    arguments = commit_arguments(rows, {0: list(range(10)), 1: [0]})
    together, alone = [], []
    for _ in range(11):
        given, state = inputs(20), fresh_state(numbers, rows)
        _, trace = gated_delta(DELTA, *given, state, rows)
        together.append((trace, state))
        alone.append(state.clone())
        gated_delta_commit(DELTA, [(trace, alone[-1])], *arguments)
    for _ in range(2):  # each begins early behind the one before
        states = [(trace, state.clone()) for trace, state in together]
        gated_delta_commit(DELTA, states, *arguments)
        for (_, state), expected in zip(states, alone, strict=True):
            assert same_bits(state, expected)


@pytest.mark.parametrize("warps", [2, 8])
def test_any_number_of_warps_computes_the_same(steps, numbers, inputs, on_gpu, assert_near, warps):
    """A race would change the result for some of these numbers."""
    rows = on_gpu(everything(steps))
    given, state = inputs(len(rows.positions)), fresh_state(numbers, rows)
    expected = state.double()
    outs, traces = reference.gated_delta(DELTA, *given.doubled(), expected, rows)
    tile = {name: dataclasses.replace(found, warps=warps) for name, found in TILES.items()}
    delta = launches.DeltaInputs(*given, state)
    out = torch.full_like(given.v, torch.nan)
    trace = reference.empty_trace(given.k, given.v, given.g)
    launches.advance(delta, out, rows, tile["advance"]).run()
    for launch in launches.slices(delta, out, rows, chunk_tile(SMALL_SHARED)):
        launch.run()
    prepared = launches.PreparedDrafts.empty(delta, rows.layout.traits.draft_rows)
    small = chunk_tile(SMALL_SHARED)
    launches.prepare_drafts(delta, prepared, trace, rows.layout, small).run()
    launches.draft(delta, prepared, out, trace, rows.layout, tile["drafted"]).run()
    assert_near(out, outs, OUT)
    arguments = commit_arguments(rows, {1: [0, 1, 2]})
    launches.commit([(trace, state)], *arguments, tile["commit"]).run()
    reference.gated_delta_commit(DELTA, [(traces, expected)], *arguments)
    for moved in (3, 7, 1, 9, 10, 11, 8):
        assert_near(state[moved].flatten(1), expected[moved].flatten(1), STATE)


# -- in a graph -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class SlicesCarried:
    """The fields that slices need besides."""

    positions: torch.Tensor
    store_rows: torch.Tensor
    store_slots: torch.Tensor
    layout: RowLayout


@dataclass(frozen=True)
class Carrying:
    """The fields the op asks for, with a layout in buffers that stay where they are."""

    store_rows: torch.Tensor
    store_slots: torch.Tensor
    layout: RowLayout


@pytest.mark.parametrize("kind", ["single", "chain"])
def test_a_replayed_graph_gives_the_bits_of_a_call(steps, numbers, inputs, on_gpu, kind):
    """Captured on one step, replayed on another of fewer sequences and other slots."""
    size = 1 if kind == "single" else 5
    make = steps.certain if kind == "single" else steps.chain
    wide = on_gpu(steps.build(*(make(9, size) for _ in range(4))))
    given = inputs(4 * size)
    state = torch.cat([fresh_state(numbers, wide)[1:5]] * 2)
    carried = Carrying(wide.store_rows, wide.store_slots, wide.layout)
    gated_delta(DELTA, *given, state.clone(), carried)
    torch.cuda.synchronize()
    graph, static = torch.cuda.CUDAGraph(), state.clone()
    with torch.cuda.graph(graph):
        out, trace = gated_delta(DELTA, *given, static, carried)
    narrow = on_gpu(steps.build(*(make(9, size) for _ in range(3)), slots=(6, 1, 4)))
    carried.layout.spans.zero_()
    carried.layout.spans[:3] = narrow.layout.spans
    carried.layout.path[: 3 * size] = narrow.layout.path
    for tensor, fresh in zip(given, inputs(4 * size), strict=True):
        tensor.copy_(fresh)
    static.copy_(state)
    graph.replay()
    expected, used = state.clone(), slice(0, 3 * size)
    called, traced = gated_delta(DELTA, *given.rows(used), expected, narrow)
    assert same_bits(out[used], called)
    assert same_bits(static, expected)
    if trace is not None:
        assert same_bits(trace.d[used], traced.d)


def test_a_replayed_graph_of_slices_gives_the_bits_of_a_call(steps, numbers, inputs, on_gpu):
    """Captured on one step, replayed on slices of other lengths, with padding between them."""
    wide = on_gpu(steps.build(*(steps.certain(0, 64) for _ in range(8))))
    given, count = inputs(512), 8
    state = fresh_state(numbers, wide)
    empty = wide.store_rows[:0]
    carried = SlicesCarried(wide.positions.clone(), empty, empty, wide.layout)
    gated_delta(DELTA, *given, state.clone(), carried)
    torch.cuda.synchronize()
    graph, static = torch.cuda.CUDAGraph(), state.clone()
    with torch.cuda.graph(graph):
        out, _ = gated_delta(DELTA, *given, static, carried)
    for lengths in ((300,), (2, 3, 130), (64, 64, 65, 66, 67), (37,) * 7):
        parts = (steps.certain(29 * index, n) for index, n in enumerate(lengths))
        narrow = on_gpu(steps.build(*parts))
        carried.layout.slices.zero_()
        places = [1 + count * index // (len(lengths) + 1) for index in range(len(lengths))]
        carried.layout.slices[places] = narrow.layout.slices
        used = slice(0, sum(lengths))
        carried.positions[used] = narrow.positions
        static.copy_(state)
        graph.replay()
        expected = state.clone()
        called, _ = gated_delta(DELTA, *given.rows(used), expected, narrow)
        assert same_bits(out[used], called)
        assert same_bits(static, expected)


def test_it_runs_on_cuda_devices_only():
    assert kernels.supports(DELTA)
    on_cpu = dataclasses.replace(DELTA, device=torch.device("cpu"))
    assert kernels.supports(on_cpu).reason == "it runs on CUDA devices, the model is on cpu"
