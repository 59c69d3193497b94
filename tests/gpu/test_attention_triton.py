"""The kernels around attention on the GPU: heads of released models against float64, the same bits
wherever blocks lie, in company and in a graph."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, replace

import pytest
import torch
from int8_sums import assert_sums_are_those_of_the_rows

from kinfolk_kernels.codecs import FORMATS, Coded, decode, encode, rotate
from kinfolk_kernels.int8_rows import quantize
from kinfolk_kernels.paged_attention import triton_backend as kernels
from kinfolk_kernels.paged_attention.epilogue import Epilogue, finish
from kinfolk_kernels.paged_attention.op import GatedAttentionArguments
from kinfolk_kernels.rows import CHUNK_POSITIONS

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


# (relative L2 of a row and head, largest error / rms). Weights of values are rounded to 16 bits,
# and so is the result; both cost 1e-3 in bfloat16.
NARROW = (5e-3, 2e-1)
# Scores of heavy-tailed numbers reach 100, where a unit in the last place is 8e-6.
F32 = (1e-4, 3e-4)


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    dim: int
    window: int | None = None


SHAPES = {
    "24 over 4 of 256": Shape(24, 4, 256),
    "16 over 8 of 256 in a window": Shape(16, 8, 256, 1024),
    "16 over 2 of 512": Shape(16, 2, 512),
    "48 over 8 of 128": Shape(48, 8, 128),
    "64 over 8 of 128 in a window": Shape(64, 8, 128, 512),
}
FIRST = SHAPES["24 over 4 of 256"]


@dataclass(frozen=True)
class Storage:
    """Formats of keys and values, where they are coded, and the type of plain numbers."""

    formats: tuple[str, str] = ("", "")
    dtype: torch.dtype = torch.bfloat16
    rotated: bool = False


BF16 = Storage()
Q8_0 = Storage(("q8_0", "q8_0"))


# -- keys and values ------------------------------------------------------------------------------


@pytest.fixture
def draw():
    """``draw(*shape)``: float32 on the device with heavy tails, up to 8."""
    generator = torch.Generator("cuda").manual_seed(11)

    def numbers(*shape):
        x, y, z = (torch.randn(shape, generator=generator, device="cuda") for _ in range(3))
        return torch.where(z > 2.3, 50 * x, x * (0.5 * y).exp()).clamp(-8, 8)

    return numbers


def section(blocks, heads, width, dtype, stride=None):
    """One section of blocks that hold others too; unwritten memory is NaN, or 0x7F in codes.
    ``stride``: elements from block to block, of which the rest is left as it is."""
    used = heads * CHUNK_POSITIONS * width
    step = stride or 3 * used
    whole = torch.empty(blocks * step, dtype=dtype, device="cuda")
    view = whole.as_strided(
        (blocks, heads, CHUNK_POSITIONS, width), (step, CHUNK_POSITIONS * width, width, 1), 0
    )
    return view.fill_(0x7F if dtype == torch.uint8 else torch.nan)


def empty_section(blocks, heads, dim, format, storage, stride=None):
    if not format:
        return section(blocks, heads, dim, storage.dtype, stride)
    codes = section(blocks, heads, dim // FORMATS[format], torch.uint8, stride)
    scales = section(blocks, heads, dim // 32, torch.float16, stride)
    return Coded(format, codes, scales, storage.rotated)


def put(stored, places, x):
    """Store vectors x [n, heads, dim] at ``places`` (block * 64 + offset)."""
    if isinstance(stored, Coded):
        codes, scales = encode(stored.format, rotate(x) if stored.rotated else x)
        pairs = ((stored.codes, codes), (stored.scales, scales))
    else:
        pairs = ((stored, x.to(stored.dtype)),)
    for plane, vectors in pairs:
        plane[places // CHUNK_POSITIONS, :, places % CHUNK_POSITIONS] = vectors


def kept(x, format, storage):
    """The stored values of vectors in float64, rotated if they are stored rotated."""
    if not format:
        return x.to(storage.dtype).double()
    return decode(format, *encode(format, rotate(x) if storage.rotated else x)).double()


@dataclass
class Memory:
    pools: tuple
    arenas: tuple
    vectors: list
    """Keys and values of every sequence as drawn, its rows at the end."""


def fill(rows, vectors, storage, stride=None, blocks=None):
    """The vectors of all sequences in the places that the step names."""
    heads, dim = vectors[0][0].shape[1:]
    arena_blocks = 1 + len(rows.positions) // CHUNK_POSITIONS
    pools, arenas = (
        tuple(empty_section(n, heads, dim, f, storage, stride) for f in storage.formats)
        for n in (blocks or rows.blocks, arena_blocks)
    )
    for index, part in enumerate(rows.parts):
        place = torch.arange(part.context, device="cuda")
        places = (
            rows.table.blocks[index].long()[place // CHUNK_POSITIONS] * CHUNK_POSITIONS
            + place % CHUNK_POSITIONS
        )
        span = rows.span(index)
        held = rows.arena_row[span]
        for pool, arena, x in zip(pools, arenas, vectors[index], strict=True):
            put(pool, places, x[: part.context])
            if part.parents is None:
                put(pool, rows.write_row[0, span], x[part.context :])
            else:
                put(arena, held, x[part.context :])
    return Memory(pools, arenas, vectors)


@pytest.fixture
def make(steps, on_gpu, draw):
    """``make(parts, shape, storage, places, ...)``: step, query and memory on the device."""

    def build(parts, shape, storage, places=3, vectors=None, **options):
        rows = steps.build(*parts, places=places)
        rows = replace(on_gpu(rows), table=on_gpu(rows.table))
        if vectors is None:
            size = (shape.kv_heads, shape.dim)
            vectors = [
                tuple(draw(part.context + part.rows, *size) for _ in range(2)) for part in parts
            ]
        memory = fill(rows, vectors, storage, **options)
        # A gate lies beside each query, as a fused projection gives them.
        wide = draw(len(rows.positions), shape.heads, 2 * shape.dim)
        coded = any(storage.formats)
        wide = wide.to(torch.bfloat16 if coded else storage.dtype)
        return rows, wide[..., : shape.dim], wide[..., shape.dim :], memory

    return build


def visible(part, window):
    """The vectors of a sequence that each of its rows sees."""
    size = part.context + part.rows
    mask = torch.zeros(part.rows, size, dtype=torch.bool)
    mask[:, : part.context] = True
    depth = []
    for row in range(part.rows):
        path = part.path(row)
        mask[row, torch.tensor(path) + part.context] = True
        depth.append(part.context + len(path) - 1)
    if window is not None:
        places = torch.tensor([*range(part.context), *depth])
        mask &= places > torch.tensor(depth)[:, None] - window
    return mask.cuda()


def exact(q, rows, memory, shape, storage):
    """Masked softmax in float64 over what is stored."""
    out = torch.empty(q.shape, dtype=torch.float64, device="cuda")
    for index, part in enumerate(rows.parts):
        keys, values = (
            kept(x, f, storage) for x, f in zip(memory.vectors[index], storage.formats, strict=True)
        )
        mine = q[rows.span(index)].double().unflatten(1, (shape.kv_heads, -1))
        scores = torch.einsum("rhgd,nhd->rhgn", mine, keys) * shape.dim**-0.5
        scores.masked_fill_(~visible(part, shape.window)[:, None, None], -math.inf)
        mixed = torch.einsum("rhgn,nhd->rhgd", scores.softmax(-1), values)
        out[rows.span(index)] = mixed.flatten(1, 2)
    if storage.rotated and storage.formats[1]:
        out = rotate(out).double()
    return out


def arguments(q, rows, memory, shape):
    scale = shape.dim**-0.5
    return q, memory.pools, memory.arenas, rows, rows.table, shape.window, scale


def gated_attention(q, pools, arenas, rows, table, window, scale, epilogue):
    """The op with the arguments that fit its operands."""
    arguments = GatedAttentionArguments.of(q, pools, window, scale)
    return kernels.gated_attention(arguments, q, pools, arenas, rows, table, epilogue)


def supports(q, pools, arenas, rows, table, window, scale, epilogue):
    return kernels.supports(GatedAttentionArguments.of(q, pools, window, scale))


def attention(*arguments):
    """The op without the steps after attention."""
    return gated_attention(*arguments, Epilogue()).values


def everything(steps):
    """Rows of every kind in one step."""
    return (
        steps.certain(2500, 1),
        steps.chain(1000, 5),
        steps.certain(0, 1),
        steps.random_tree(1300, 16),
        steps.certain(700, 300),
        steps.certain(63, 2),
    )


# -- against float64 ------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", [BF16, Q8_0], ids=["bf16", "q8_0"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_rows_of_every_kind(steps, make, assert_near, poisoned, shape, storage):
    rows, q, _, memory = make(everything(steps), shape, storage)
    call = arguments(q, rows, memory, shape)
    assert supports(*call, Epilogue())
    with poisoned():
        found = attention(*call)
    assert found.dtype == q.dtype
    assert_near(found, exact(q, rows, memory, shape, storage), NARROW)


def test_more_slices_than_are_looked_at_together(steps, make, assert_near, poisoned):
    """Of single tiles and several, empty contexts and long ones."""
    parts = tuple(steps.certain(97 * (n % 5), 66 + 31 * (n % 7)) for n in range(40))
    rows, q, _, memory = make(parts, FIRST, BF16)
    with poisoned():
        found = attention(*arguments(q, rows, memory, FIRST))
    assert_near(found, exact(q, rows, memory, FIRST, BF16), NARROW)


def test_more_rows_than_results_of_runs_are_kept_for(steps, make, assert_near, poisoned):
    """Of a slice of more than 4096 rows, and sequences of few rows beside it."""
    few = steps.certain(2500, 1), steps.random_tree(1300, 16), steps.certain(0, 20)
    rows, q, _, memory = make((steps.certain(0, 4100), *few), FIRST, BF16)
    with poisoned():
        found = attention(*arguments(q, rows, memory, FIRST))
    assert_near(found, exact(q, rows, memory, FIRST, BF16), NARROW)


STORAGES = {
    "f16": Storage(dtype=torch.float16),
    "q4_0 rotated": Storage(("q4_0", "q4_0"), rotated=True),
    "keys q8_0, values q4_0": Storage(("q8_0", "q4_0")),
    "keys q8_0, values plain": Storage(("q8_0", "")),
}


@pytest.mark.parametrize("storage", STORAGES.values(), ids=STORAGES)
def test_other_storage(steps, make, assert_near, poisoned, storage):
    rows, q, _, memory = make(everything(steps), FIRST, storage)
    with poisoned():
        found = attention(*arguments(q, rows, memory, FIRST))
    assert_near(found, exact(q, rows, memory, FIRST, storage), NARROW)


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_float32(steps, make, assert_near, poisoned, dim):
    shape, storage = Shape(8, 2, dim), Storage(dtype=torch.float32)
    parts = (steps.certain(500, 1), steps.random_tree(100, 9), steps.certain(10, 70))
    rows, q, _, memory = make(parts, shape, storage)
    with poisoned():
        found = attention(*arguments(q, rows, memory, shape))
    assert_near(found, exact(q, rows, memory, shape, storage), F32)


@pytest.mark.parametrize("storage", [BF16, Q8_0], ids=["bf16", "q8_0"])
@pytest.mark.parametrize("context", [4095, 40_000, 140_000])
def test_one_row_after_a_long_context(steps, make, assert_near, poisoned, context, storage):
    """Runs of 2, 8 and 16 chunks."""
    rows, q, _, memory = make((steps.certain(context, 1),), FIRST, storage)
    with poisoned():
        found = attention(*arguments(q, rows, memory, FIRST))
    assert_near(found, exact(q, rows, memory, FIRST, storage), NARROW)


@pytest.mark.parametrize("rows_of_tree", [16, 64])
def test_drafts_after_a_long_context(steps, make, assert_near, poisoned, rows_of_tree):
    """Steps of many rows keep fewer runs; every height of tile occurs."""
    parts = (steps.random_tree(33_000, rows_of_tree), steps.chain(9000, 4))
    rows, q, _, memory = make(parts, FIRST, BF16)
    with poisoned():
        found = attention(*arguments(q, rows, memory, FIRST))
    assert_near(found, exact(q, rows, memory, FIRST, BF16), NARROW)


def test_blocks_may_lie_beyond_the_reach_of_32_bits(steps, make, assert_near):
    """38 blocks that are 2^26 numbers apart: 5 GB a section."""
    parts = (steps.certain(1500, 1), steps.certain(500, 80))
    rows, q, _, memory = make(parts, FIRST, BF16, stride=2**26)
    assert memory.pools[0].stride(0) * int(rows.table.blocks.max()) > 2**31 - 1
    found = attention(*arguments(q, rows, memory, FIRST))
    assert_near(found, exact(q, rows, memory, FIRST, BF16), NARROW)


def test_gates_factors_and_int8_rows(steps, make, assert_near, poisoned, draw):
    parts = tuple(part for part in everything(steps) if part.rows <= 64)
    rows, q, gate, memory = make(parts, FIRST, BF16)
    factor = draw(len(rows.positions), FIRST.heads, 1)
    epilogue = Epilogue(gate, factor, torch.float32, int8=True, activation="softplus")
    call = (*arguments(q, rows, memory, FIRST), epilogue)
    assert supports(*call)
    with poisoned():
        found = gated_attention(*call)
    expected = finish(exact(q, rows, memory, FIRST, BF16), epilogue, torch.float32)
    assert_near(found.values, expected.values, NARROW)
    # The rows are those of the very numbers that were stored; a tie may go either way.
    meant = quantize(found.values.flatten(1))
    mine, theirs = (x.words.view(torch.int8).int() for x in (found.int8, meant))
    torch.testing.assert_close(found.int8.scales, meant.scales, rtol=1e-6, atol=0)
    assert int((mine - theirs).abs().max()) <= 1
    assert float((mine != theirs).float().mean()) < 1e-3
    assert_sums_are_those_of_the_rows(found.int8)


def test_a_slice_is_gated(steps, make, assert_near, poisoned):
    rows, q, gate, memory = make((steps.certain(100, 200),), FIRST, BF16)
    epilogue = Epilogue(gate)
    with poisoned():
        found = gated_attention(*arguments(q, rows, memory, FIRST), epilogue)
    expected = finish(exact(q, rows, memory, FIRST, BF16), epilogue, torch.float32)
    assert found.values.dtype == torch.bfloat16
    assert_near(found.values, expected.values, NARROW)


# -- bitwise equality -----------------------------------------------------------------------------


@pytest.mark.parametrize("storage", [BF16, Q8_0], ids=["bf16", "q8_0"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_where_blocks_lie_changes_no_bit(steps, make, shape, storage):
    parts = everything(steps)
    rows, q, _, memory = make(parts, shape, storage, None)
    found = attention(*arguments(q, rows, memory, shape))
    for _ in range(3):
        assert torch.equal(attention(*arguments(q, rows, memory, shape)), found)
    moved, _, _, again = make(parts, shape, storage, 5, memory.vectors)
    assert not torch.equal(moved.table.blocks, rows.table.blocks)
    assert torch.equal(attention(*arguments(q, moved, again, shape)), found)


@pytest.mark.parametrize("storage", [BF16, Q8_0], ids=["bf16", "q8_0"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_company_changes_no_bit(steps, make, shape, storage):
    """In steps with the same number of rows."""
    parts = everything(steps)
    rows, q, _, memory = make(parts, shape, storage)
    found = attention(*arguments(q, rows, memory, shape))
    for index, part in enumerate(parts):
        alone, _, _, own = make((part,), shape, storage, 7, [memory.vectors[index]])
        span = rows.span(index)
        padded = torch.cat([q[span], q[: len(q) - part.rows]])
        solo = attention(*arguments(padded, alone, own, shape))[: part.rows]
        assert torch.equal(solo, found[span]), index


def widened(rows, width):
    """The step with a table of fixed width."""
    missing = (0, width - rows.table.blocks.shape[1])
    blocks, chunks = (
        torch.nn.functional.pad(x, missing) for x in (rows.table.blocks, rows.table.chunks)
    )
    return replace(rows, table=replace(rows.table, blocks=blocks, chunks=chunks))


def overwrite(target, source):
    """Copy every tensor of a dataclass into the memory of another."""
    for field in dataclasses.fields(target):
        mine, other = getattr(target, field.name), getattr(source, field.name)
        if isinstance(mine, torch.Tensor):
            mine.copy_(other)
        elif dataclasses.is_dataclass(mine):
            overwrite(mine, other)


@pytest.mark.parametrize("storage", [BF16, Q8_0], ids=["bf16", "q8_0"])
def test_a_graph_serves_every_context(steps, make, storage):
    """Captured at one context, replayed at others: the same bits as without a graph."""
    calls = []
    for contexts in ((100, 700, 40), (333, 64, 4000)):
        parts = (
            steps.certain(contexts[0], 1),
            steps.random_tree(contexts[1], 8),
            steps.certain(contexts[2], 1),
        )
        rows, q, gate, memory = make(parts, FIRST, storage, blocks=200)
        rows = widened(rows, 100)
        epilogue = Epilogue(gate, int8=True)
        calls.append((*arguments(q, rows, memory, FIRST), epilogue))
    eager = [gated_attention(*call) for call in calls]
    static = calls[0]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gated_attention(*static)
    for call, expected in zip(calls, eager, strict=True):
        q, pools, _, rows, _, _, _, epilogue = call
        if call is not static:
            for mine, other in zip(static[1] + static[2], pools + call[2], strict=True):
                overwrite(mine, other) if isinstance(mine, Coded) else mine.copy_(other)
            static[0].copy_(q)
            static[7].gate.copy_(epilogue.gate)
            overwrite(static[3], rows)
        for _ in range(3):
            captured.values.zero_()
            graph.replay()
            assert torch.equal(captured.values, expected.values)
            assert torch.equal(captured.int8.words, expected.int8.words)
            assert torch.equal(captured.int8.scales, expected.int8.scales)


# -- refused arguments ----------------------------------------------------------------------------


def test_it_refuses_what_lies_elsewhere(steps, make):
    rows, q, _, memory = make((steps.certain(3, 1),), FIRST, BF16)
    call = arguments(q, rows, memory, FIRST)
    assert "CUDA" in supports(q.cpu(), *call[1:], Epilogue()).reason
