"""The attention kernels in the interpreter, against a masked softmax in float64.

All that a row must not read is NaN, and so is unwritten memory.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial

import pytest
import torch
import triton
import triton.language as tl
from int8_sums import assert_sums_are_those_of_the_rows

from kinfolk.ops.binding import Ops
from kinfolk.ops.builtin import OP_BACKENDS
from kinfolk_kernels.codecs import Coded, encode, rotate
from kinfolk_kernels.codecs import numbers as stored_numbers
from kinfolk_kernels.int8_rows import MAX_INT8_ROWS, dequantize, quantize
from kinfolk_kernels.paged_attention import launches
from kinfolk_kernels.paged_attention import op as reference
from kinfolk_kernels.paged_attention import triton_backend as kernels
from kinfolk_kernels.paged_attention.decode import most_runs, most_runs_of_step, run_length
from kinfolk_kernels.paged_attention.epilogue import Epilogue
from kinfolk_kernels.paged_attention.launches import Call
from kinfolk_kernels.paged_attention.op import GATED_ATTENTION, GatedAttentionArguments
from kinfolk_kernels.paged_attention.tiles import SMALL_SHARED, Device, device_of, heights
from kinfolk_kernels.rows import CHUNK_POSITIONS

pytestmark = pytest.mark.interpreter

DIM, VALUE_DIM = 16, 24
SCALE = DIM**-0.5

# (relative L2 of a row and head, largest error / rms). Scores of heavy-tailed numbers reach 100,
# where a unit in the last place is 8e-6 and shows in the exponential.
F32 = (4e-5, 1e-4)
# Weights and results are rounded to float16.
F16 = (2e-3, 2e-2)


def gated_attention(q, pools, arenas, rows, table, window, scale, epilogue, module=kernels):
    """The op with the arguments that fit its operands."""
    arguments = GatedAttentionArguments.of(q, pools, window, scale)
    return module.gated_attention(arguments, q, pools, arenas, rows, table, epilogue)


def attention(*arguments):
    """The op without the steps after attention."""
    return gated_attention(*arguments, Epilogue()).values


@pytest.fixture(autouse=True)
def unwritten_memory_is_nan():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def mild(numbers):
    """Heavy-tailed, but so that scores and values keep to what float16 can hold."""
    return lambda *shape: numbers(*shape).clamp(-8, 8)


@pytest.fixture
def check(memories, mild, assert_near):
    """``check(rows, heads, kv_heads)``: attention of random queries equals the oracle."""

    def compare(rows, heads, kv_heads, window=None, dtype=torch.float32, value_dim=VALUE_DIM):
        memory = memories.fill(rows, kv_heads, mild, (DIM, value_dim), dtype)
        q = mild(len(rows.positions), heads, DIM).to(dtype)
        found = attention(q, memory.pools, memory.arenas, rows, rows.table, window, SCALE)
        assert found.dtype == q.dtype
        expected = memories.exact(q, memory, rows, window, SCALE)
        assert_near(found, expected, F32 if dtype == torch.float32 else F16)

    return compare


# -- visible positions ----------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 62, 63, 64, 65, 126, 127, 128, 129])
def test_one_row_after_any_context(steps, check, length):
    check(steps.build(steps.certain(length, 1), places=length), 6, 2, value_dim=16 + length % 17)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (6, 1), (8, 1), (9, 1), (32, 2)])
def test_any_number_of_query_heads_shares_a_key_head(steps, check, heads, kv_heads):
    check(steps.build(steps.certain(70, 2), places=1), heads, kv_heads)


@pytest.mark.parametrize("window", [None, 1, 64])
def test_ragged_rows_of_all_kinds(steps, check, window):
    rows = steps.build(
        steps.certain(128, 1),
        steps.chain(63, 5),
        steps.random_tree(127, 13),
        steps.certain(0, 1),
        steps.random_tree(3, 9, seed=5),
        steps.certain(0, 7),
        places=2,
    )
    check(rows, 4, 2, window, torch.float16)


def test_a_tree_of_64_rows_uses_every_bit(steps, check):
    rows = steps.build(steps.tree(70, [-1, *range(62), 62]))
    assert int(rows.ancestors[-1]) == -1
    check(rows, 2, 1, None, torch.float16)


@pytest.mark.parametrize("window", [None, 2])
def test_a_tree_without_context(steps, check, window):
    check(steps.build(steps.tree(0, [-1, 0, 0, 1])), 2, 1, window)


@pytest.mark.parametrize(("context", "window"), [(0, None), (70, None), (70, 9)])
def test_rows_of_a_block_see_each_other_in_both_directions(
    steps, memories, mild, assert_near, context, window
):
    """As those of a drafter that denoises a block; several blocks beside each other."""
    chain = [-1, *range(15)]
    rows = steps.build(steps.tree(context, chain), steps.tree(130, chain), places=2)
    everyone = torch.full_like(rows.ancestors, (1 << len(chain)) - 1)
    rows = replace(rows, ancestors=everyone)
    memory = memories.fill(rows, 2, mild, (DIM, VALUE_DIM), torch.float32)
    q = mild(len(rows.positions), 8, DIM)
    call = (q, memory.pools, memory.arenas, rows, rows.table, window, SCALE, Epilogue())
    expected = gated_attention(*call, module=reference).values
    assert_near(gated_attention(*call).values, expected.double(), F32)


def test_short_sequences_beside_more_rows_than_results_of_runs_are_kept_for(
    steps, memories, mild, assert_near
):
    """Each has one run then. The long slice, which other launches compute, is left out."""
    rows = steps.build(steps.certain(0, 4096), steps.random_tree(70, 4), places=1)
    memory = memories.fill(rows, 1, mild, (DIM, VALUE_DIM), torch.float32)
    q = mild(len(rows.positions), 1, DIM)
    operands = q, memory.pools, memory.arenas, rows, rows.table, None, SCALE, Epilogue()
    call = Call(*operands, device_of(q))
    outputs = call.outputs()
    for launch in call.launches(outputs):
        if "prefill" not in getattr(launch.kernel, "fn", launch.kernel).__name__:
            launch.run()
    expected = memories.exact(q, memory, rows, None, SCALE)
    assert_near(outputs.values[-4:], expected[-4:], F32)


def test_rows_that_fill_several_tiles(steps, check):
    """40 rows of 6 heads are 240 pairs: two tiles of 128."""
    check(steps.build(steps.certain(60, 40), places=3), 6, 1, None, torch.float16)


@pytest.mark.parametrize("window", [None, 3, 65])
@pytest.mark.parametrize("context", [0, 62])
def test_slices_of_prompts(steps, check, context, window):
    """Chunks end where the first row of a tile or the window of its last one does."""
    rows = steps.build(
        steps.certain(context, 65), steps.certain(7, 3), steps.certain(0, 130), places=5
    )
    check(rows, 3, 1, window, torch.float16, value_dim=32)


def test_a_slice_in_float32(steps, check):
    check(steps.build(steps.certain(60, 70), places=1), 2, 2)


def test_many_runs(steps, check):
    """70 chunks are runs of four; one more row fills the last of them."""
    check(
        steps.build(steps.certain(70 * CHUNK_POSITIONS - 1, 1), places=4), 1, 1, None, torch.float16
    )


def test_an_evicted_chunk_is_not_seen(steps, memories, mild, assert_near):
    for part in (steps.certain(190, 4), steps.certain(190, 66)):
        rows = steps.build(part, places=1)
        memory = memories.fill(rows, 1, mild, (DIM, VALUE_DIM))
        q = mild(part.rows, 2, DIM)
        for pool in memory.pools:
            pool[int(rows.table.blocks[0, 1])] = torch.nan
        kept = torch.tensor([[n for n in range(rows.table.blocks.shape[1]) if n != 1]])
        table = replace(
            rows.table,
            blocks=rows.table.blocks.gather(1, kept),
            chunks=rows.table.chunks.gather(1, kept),
            length=rows.table.length - 1,
            lengths=(rows.table.lengths[0] - 1,),
        )
        found = attention(q, memory.pools, memory.arenas, rows, table, None, SCALE)
        assert_near(found, memories.exact(q, memory, rows, None, SCALE, [1]), F32)


@pytest.mark.parametrize("seed", range(6))
def test_random_shapes(steps, memories, mild, assert_near, seed):
    """Random heads, dimensions and windows."""
    generator = random.Random(seed)
    kinds = (steps.certain, steps.chain, lambda n, rows: steps.random_tree(n, rows, seed))
    parts = [
        generator.choice(kinds)(generator.randrange(200), generator.randint(1, 20))
        for _ in range(generator.randint(1, 3))
    ]
    parts.append(steps.certain(generator.randrange(100), generator.choice([2, 65, 71])))
    kv_heads, group = generator.randint(1, 2), generator.randint(1, 7)
    dims = (generator.randint(3, 40), generator.randint(3, 40))
    window = generator.choice([None, generator.randint(1, 150)])
    rows = steps.build(*parts, places=seed)
    memory = memories.fill(rows, kv_heads, mild, dims)
    q = mild(len(rows.positions), kv_heads * group, dims[0])
    scale = dims[0] ** -0.5
    found = attention(q, memory.pools, memory.arenas, rows, rows.table, window, scale)
    assert_near(found, memories.exact(q, memory, rows, window, scale), F32)


# -- bitwise equality -----------------------------------------------------------------------------


def test_where_blocks_lie_changes_no_bit(steps, memories, mild):
    parts = (steps.certain(130, 2), steps.random_tree(99, 12), steps.certain(64, 66))
    rows = steps.build(*parts)
    memory = memories.fill(rows, 1, mild, (DIM, VALUE_DIM), torch.float16)
    q = mild(80, 3, DIM).half()
    found = attention(q, memory.pools, memory.arenas, rows, rows.table, None, SCALE)
    moved = steps.build(*parts, places=1)
    assert not torch.equal(moved.table.blocks, rows.table.blocks)
    again = memories.place(moved, memory.sequences)
    shuffled = attention(q, again.pools, again.arenas, moved, moved.table, None, SCALE)
    assert torch.equal(shuffled, found)


def test_company_changes_no_bit(steps, memories, mild):
    """Neighbours with other tiles, a longer table and a slice of a prompt."""
    mine = (steps.certain(77, 1), steps.random_tree(66, 11), steps.certain(3, 67))
    others = (steps.certain(0, 40), steps.chain(400, 3))
    together = steps.build(mine[0], others[0], mine[1], others[1], mine[2], places=3)
    memory = memories.fill(together, 1, mild, (DIM, VALUE_DIM), torch.float16)
    q = mild(len(together.positions), 3, DIM).half()
    found = attention(q, memory.pools, memory.arenas, together, together.table, 50, SCALE)
    for index, part in zip((0, 2, 4), mine, strict=True):
        alone = steps.build(part)
        own = memories.place(alone, [memory.sequences[index]])
        span = together.span(index)
        solo = attention(q[span], own.pools, own.arenas, alone, alone.table, 50, SCALE)
        assert torch.equal(solo, found[span])


def results(call):
    mixed = call.outputs()
    for launch in call.launches(mixed):
        launch.run()
    return mixed.values


@pytest.fixture
def call(steps, memories, mild):
    rows = steps.build(steps.certain(300, 1), steps.random_tree(66, 5), places=3)
    memory = memories.fill(rows, 2, mild, (DIM, VALUE_DIM), torch.float16)
    q = mild(6, 4, DIM).half()
    device = Device(1, SMALL_SHARED)
    parts = (q, memory.pools, memory.arenas, rows, rows.table)
    return Call(*parts, None, SCALE, Epilogue(), device)


def test_the_number_of_programs_changes_no_bit(call):
    assert torch.equal(results(call), results(replace(call, device=Device(132, SMALL_SHARED))))


def test_the_constants_of_a_captured_graph_change_no_bit(call):
    """Lengths are read on the device: a graph for up to 64 rows and any context serves."""
    wide = (
        torch.nn.functional.pad(call.table.blocks, (0, 300)),
        torch.nn.functional.pad(call.table.chunks, (0, 300)),
    )
    layout = call.rows.layout
    traits = replace(layout.traits, short_counts=(1, 2, 4, 5, 8, 64), trees=True)
    rows = replace(call.rows, layout=replace(layout, traits=traits))
    captured = replace(call, rows=rows, table=replace(call.table, blocks=wide[0], chunks=wide[1]))
    assert torch.equal(results(captured), results(call))


def test_padding_of_a_captured_graph_changes_no_bit(steps, memories, mild):
    """A sequence without rows, and places of lists that no sequence of the step fills."""
    parts = (steps.certain(3, 67), steps.certain(300, 1), steps.certain(0, 130), steps.chain(60, 5))
    rows = steps.build(*parts, places=3)
    memory = memories.fill(rows, 2, mild, (DIM, VALUE_DIM), torch.float16)
    q = mild(len(rows.positions), 4, DIM).half()
    arguments = (q, memory.pools, memory.arenas)
    others = (None, SCALE, Epilogue(), Device(1, SMALL_SHARED))
    layout, table = rows.layout, rows.table
    pad = partial(torch.nn.functional.pad, mode="constant")
    padded = replace(
        layout,
        spans=pad(layout.spans, (0, 0, 0, 1)),
        short=pad(layout.short, (0, 3), value=len(parts)),
        long=pad(layout.long, (33, 1), value=len(parts)),
        short_rows=pad(layout.short_rows, (0, 9), value=-1),
        traits=replace(layout.traits, short_counts=tuple(range(1, 65))),
    )
    wider = replace(
        table,
        blocks=pad(table.blocks, (0, 5, 0, 1)),
        chunks=pad(table.chunks, (0, 5, 0, 1)),
        length=pad(table.length, (0, 1)),
    )
    plain = results(Call(*arguments, rows, table, *others))
    captured = results(Call(*arguments, replace(rows, layout=padded), wider, *others))
    assert torch.equal(captured, plain)


def test_the_op_is_bound_by_name(call):
    ops = Ops(OP_BACKENDS, {"gated_attention": "triton"})
    attend = ops.bind(GATED_ATTENTION, GatedAttentionArguments.of(call.q, call.pools, None, SCALE))
    found = attend(call.q, call.pools, call.arenas, call.rows, call.table, call.epilogue)
    assert ("gated_attention", "triton") in ops.decisions
    assert torch.equal(found.values, results(call))


# -- runs -----------------------------------------------------------------------------------------


@triton.jit
def run_length_kernel(n, rows, most, out):
    tl.store(out + tl.program_id(0), run_length(tl.load(n + tl.program_id(0)), rows, most))


@pytest.mark.parametrize(
    ("rows", "step", "most"),
    [
        (1, 1, 256),
        (8, 16, 256),
        (9, 16, 32),
        (64, 64, 32),
        (1, 17, 128),
        (1, 512, 8),
        (64, 512, 8),
        (1, 4096, 1),
        (1, 4097, 1),
        (64, 6144, 1),
        (1, 20000, 1),
    ],
)
def test_runs_depend_on_the_length_and_are_never_more_than_are_kept(rows, step, most):
    lengths = [
        1,
        2,
        3,
        32,
        33,
        63,
        64,
        65,
        255,
        256,
        257,
        2047,
        2048,
        2049,
        4096,
        4097,
        16384,
        *([100000] if most > 1 else []),  # more than two million positions
    ]
    found = torch.zeros(len(lengths), dtype=torch.int32)
    of_step = most_runs_of_step(step)
    given = torch.tensor(lengths, dtype=torch.int32)
    run_length_kernel[(len(lengths),)](given, rows, of_step, found)
    runs = [-(-n // run) for n, run in zip(lengths, found.tolist(), strict=True)]
    if most >= 32:
        assert found.tolist()[:8] == [1, 1, 1, 1, 2, 2, 2, 4]
    assert max(runs) == most
    for width in lengths:
        found = max(r for n, r in zip(lengths, runs, strict=True) if n <= width)
        assert found <= most_runs(width, rows, of_step) <= most


def test_every_number_of_pairs_has_exactly_one_height():
    for size in (16, 128, 256, 512):
        found = heights(range(1, 700), size, size, 2)
        for pairs in range(1, 700):
            (mine,) = (h for h in found if h.above < pairs <= h.up_to)
            assert heights([pairs], size, size, 2) == (mine,)
            assert pairs <= mine.m or mine is found[-1]


# -- storage in blocks ----------------------------------------------------------------------------


def coded(x, format, rotated, size):
    """A pool of plain numbers, coded; NaN in the pool becomes NaN in the scales."""
    wide = torch.nn.functional.pad(x, (0, size - x.shape[-1]))
    codes, scales = encode(format, (rotate(wide) if rotated else wide).nan_to_num(0))
    gone = x.isnan().any(-1)
    codes[gone], scales[gone] = 0x7F, torch.nan
    return Coded(format, codes, scales, rotated)


@pytest.mark.parametrize(
    ("formats", "rotated"),
    [(("q8_0", "q8_0"), False), (("q4_0", "q4_0"), True), (("q8_0", "q4_0"), True)],
)
@pytest.mark.parametrize("slices", [False, True])
def test_coded_keys_and_values(steps, memories, mild, assert_near, formats, rotated, slices):
    parts = (steps.certain(0, 66),) if slices else (steps.certain(70, 2), steps.random_tree(5, 4))
    rows = steps.build(*parts, places=2)
    memory = memories.fill(rows, 1, mild, (32, 64))
    pools, arenas = (
        tuple(coded(x, f, rotated, x.shape[-1]) for x, f in zip(side, formats, strict=True))
        for side in (memory.pools, memory.arenas)
    )
    q = mild(len(rows.positions), 2, 32)
    found = attention(q, pools, arenas, rows, rows.table, None, SCALE)
    clean = tuple(replace(p, scales=p.scales.nan_to_num(0)) for p in pools)
    clean_arenas = tuple(replace(p, scales=p.scales.nan_to_num(0)) for p in arenas)
    expected = reference.paged_attention(q, clean, clean_arenas, rows, rows.table, None, SCALE)
    assert_near(found, expected, F32)


@pytest.mark.parametrize("formats", [("q4_0", "q8_0"), ("plain", "q4_0")])
def test_heads_that_become_numbers_one_by_one_give_the_same_bits(
    steps, memories, mild, monkeypatch, formats
):
    rows = steps.build(steps.certain(3, 66), steps.certain(1, 1), steps.certain(64, 67), places=2)
    memory = memories.fill(rows, 3, mild, (32, 64))
    pools, arenas = (
        tuple(
            x if f == "plain" else coded(x, f, True, x.shape[-1])
            for x, f in zip(side, formats, strict=True)
        )
        for side in (memory.pools, memory.arenas)
    )
    q = mild(len(rows.positions), 6, 32)
    given = (q, pools, arenas, rows, rows.table, None, SCALE)
    together = attention(*given)
    monkeypatch.setattr(launches, "SPARE", 0)
    assert torch.equal(attention(*given), together)
    assert not together.isnan().any()


def test_keys_may_be_coded_and_values_plain(steps, memories, mild, assert_near):
    rows = steps.build(steps.certain(66, 2))
    memory = memories.fill(rows, 1, mild, (32, VALUE_DIM))
    pools, arenas = (
        (coded(keys, "q4_0", False, 32), values) for keys, values in (memory.pools, memory.arenas)
    )
    q = mild(2, 2, 32)
    found = attention(q, pools, arenas, rows, rows.table, None, SCALE)
    plain = stored_numbers(replace(pools[0], scales=pools[0].scales.nan_to_num(0)))
    both = (plain, memory.pools[1])
    expected = reference.paged_attention(q, both, memory.arenas, rows, rows.table, None, SCALE)
    assert_near(found, expected, F32)


# -- steps after attention ------------------------------------------------------------------------


@pytest.mark.parametrize(("factor_dim", "activation"), [(1, "softplus"), (64, "identity")])
@pytest.mark.parametrize("slices", [False, True])
def test_gates_and_factors(steps, memories, mild, assert_near, slices, factor_dim, activation):
    parts = (steps.certain(0, 66),) if slices else (steps.certain(70, 2), steps.random_tree(5, 4))
    rows = steps.build(*parts, places=2)
    memory = memories.fill(rows, 1, mild, (DIM, 64))
    count = len(rows.positions)
    q = mild(count, 2, DIM + 64)
    epilogue = Epilogue(
        q[..., DIM:], mild(count, 2, factor_dim), torch.float16, activation=activation
    )
    rest = (memory.pools, memory.arenas, rows, rows.table, None, SCALE, epilogue)
    found = gated_attention(q[..., :DIM], *rest)
    expected = gated_attention(q[..., :DIM], *rest, module=reference)
    assert found.values.dtype == torch.float16
    assert (found.int8 is None) == (count > MAX_INT8_ROWS)
    assert_near(found.values, expected.values, (5e-4, 5e-3))


def test_int8_rows(steps, memories, mild, assert_near):
    rows = steps.build(steps.certain(70, 2), steps.random_tree(5, 4), places=2)
    memory = memories.fill(rows, 1, mild, (DIM, 128))
    q = mild(6, 2, DIM)
    epilogue = Epilogue(mild(6, 2, 128), None, torch.float16, int8=True)
    rest = (memory.pools, memory.arenas, rows, rows.table, None, SCALE, epilogue)
    found = gated_attention(q, *rest).int8
    expected = gated_attention(q, *rest, module=reference).int8
    assert_near(found.scales, expected.scales, (1e-5, 1e-4))
    assert_near(dequantize(found), dequantize(expected), (2e-3, 5e-2))
    assert_sums_are_those_of_the_rows(found)


@pytest.mark.parametrize(("count", "dim"), [(MAX_INT8_ROWS, 64), (MAX_INT8_ROWS + 1, 64), (4, 32)])
def test_few_rows_get_int8_ones_unasked(steps, memories, mild, count, dim):
    rows = steps.build(steps.certain(70, count), places=2)
    memory = memories.fill(rows, 1, mild, (DIM, dim))
    rest = (memory.pools, memory.arenas, rows, rows.table, None, SCALE, Epilogue())
    found = gated_attention(mild(count, 2, DIM), *rest)
    assert (found.int8 is not None) == (count <= MAX_INT8_ROWS and dim == 64)
    if found.int8 is not None:
        assert torch.equal(found.int8.words, quantize(found.values.flatten(1)).words)
        assert_sums_are_those_of_the_rows(found.int8)


# -- refused arguments ----------------------------------------------------------------------------


def test_it_says_what_it_cannot_do(call):
    arguments = GatedAttentionArguments.of(call.q, call.pools, None, SCALE)

    def refusal(**changes):
        return kernels.supports(replace(arguments, **changes)).reason

    assert refusal() == ""
    assert "3 query heads" in refusal(heads=3)
    assert "interpreter" in refusal(dtype=torch.bfloat16)
    assert "int64" in refusal(dtype=torch.int64)
    assert "more than 512 dimensions" in refusal(keys=replace(arguments.keys, dim=1024))
    unknown = replace(arguments.keys, dtype=None, format="q3")
    assert "stored as q3" in refusal(keys=unknown)
    odd = replace(arguments.values, dtype=None, format="q8_0", dim=96)
    assert "coded heads of 96 dimensions" in refusal(values=odd)
    assert "keys or values of torch.int8" in refusal(keys=replace(arguments.keys, dtype=torch.int8))


def test_a_query_that_is_not_contiguous_is_copied(call):
    apart = call.q.repeat_interleave(2, 2)[..., ::2]
    rest = (call.pools, call.arenas, call.rows, call.table, None, SCALE, Epilogue())
    assert not apart.is_contiguous()
    assert torch.equal(gated_attention(apart, *rest).values, gated_attention(call.q, *rest).values)
