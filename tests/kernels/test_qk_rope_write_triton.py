"""The kernel before attention in the interpreter, against the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kinfolk_kernels import codecs
from kinfolk_kernels.codecs import Coded, encode
from kinfolk_kernels.qk_rope_write import op as reference
from kinfolk_kernels.qk_rope_write import triton_backend
from kinfolk_kernels.qk_rope_write.head_norm import HeadNorm
from kinfolk_kernels.qk_rope_write.op import QKRopeWriteArguments
from kinfolk_kernels.rows import CHUNK_POSITIONS
from kinfolk_kernels.stored_kind import StoredKind

pytestmark = pytest.mark.interpreter

HEADS, KV_HEADS = 3, 2
F32 = (2e-6, 2e-5)


def arguments_of(q, k, v, norms, tables, pools, pool_index, dtype):
    """The arguments of the op that fit its operands."""
    keys, values = (StoredKind.of(pool) for pool in pools)
    has_values = v is not None or k is None
    return QKRopeWriteArguments(
        norms, tables, keys, values, has_values, pool_index, dtype, q.device
    )


def qk_rope_write(
    q, k, v, norms, tables, pools, arenas, rows, pool_index, dtype, module=triton_backend
):
    arguments = arguments_of(q, k, v, norms, tables, pools, pool_index, dtype)
    return module.qk_rope_write(arguments, q, k, v, pools, arenas, rows)


@pytest.fixture
def rows(steps):
    """Rows of all kinds: pool rows, arena rows, chain rows."""
    return steps.build(steps.certain(62, 4), steps.random_tree(63, 3), steps.chain(5, 2), places=3)


def rope_tables(pairs):
    angle = 1e4 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    turn = torch.arange(200, dtype=torch.float64)[:, None] * angle
    return turn.cos().float(), turn.sin().float()


def plain(blocks, dim, dtype=torch.float32):
    return torch.full((blocks, KV_HEADS, CHUNK_POSITIONS, dim), torch.nan, dtype=dtype)


def coded(blocks, dim, format, rotated):
    codes, scales = encode(format, torch.zeros(blocks, KV_HEADS, CHUNK_POSITIONS, dim))
    return Coded(format, codes.fill_(0x7F), scales.fill_(torch.nan), rotated)


def norm(dim, seed, eps=1e-6):
    return HeadNorm(1 + 0.3 * torch.randn(dim, generator=torch.Generator().manual_seed(seed)), eps)


def owned(plane):
    """Without the dummy block, which arena rows of the reference are written to as well."""
    return plane[1:]


@pytest.fixture
def both(rows, numbers):
    """``both(dims, pairs, norms, make, own_values)``: results and memory, kernel and
    reference."""

    def run(dims, pairs, norms, make, own_values=True, dtype=torch.float32):
        count = len(rows.positions)
        # Slices of one wide projection, as a fused matrix gives them.
        dim, value_dim = dims
        wide = numbers(count, HEADS * 2 * dim + KV_HEADS * (dim + value_dim))
        parts = wide.split([HEADS * 2 * dim, KV_HEADS * dim, KV_HEADS * value_dim], 1)
        q = parts[0].view(count, HEADS, 2 * dim)[..., :dim]
        k = parts[1].view(count, KV_HEADS, dim)
        v = parts[2].view(count, KV_HEADS, value_dim) if own_values else None
        found = []
        for module in (triton_backend, reference):
            memory = [make(n, d, i) for n in (rows.blocks, 1) for i, d in enumerate(dims)]
            tables = rope_tables(pairs) if pairs else None
            args = (norms, tables, tuple(memory[:2]), tuple(memory[2:]), rows, 0, dtype)
            found.append((qk_rope_write(q, k, v, *args, module=module), memory))
        return found

    return run


def assert_memory_is_near(found, expected, assert_near):
    for place, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        if place < 2:
            mine, theirs = owned(mine), owned(theirs)
        assert torch.equal(mine.isnan(), theirs.isnan())
        assert bool((~mine.isnan()).any())
        assert_near(mine.nan_to_num(0), theirs.nan_to_num(0), F32)


NORMS = {
    "none": (None, None, None),
    "query and key": (norm(32, 1), norm(32, 2, 1e-5), None),
    "value without weight": (HeadNorm(None, 1e-6), norm(32, 4), HeadNorm(None, 1e-4)),
}


@pytest.mark.parametrize("norms", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("pairs", [0, 4, 16])
@pytest.mark.parametrize("own_values", [True, False])
def test_equals_the_reference(both, assert_near, norms, pairs, own_values):
    def make(blocks, dim, place):
        return plain(blocks, dim)

    (y, memory), (expected, expected_memory) = both((32, 32), pairs, norms, make, own_values)
    assert_near(y, expected, F32)
    assert_memory_is_near(memory, expected_memory, assert_near)


@pytest.mark.parametrize("at_once", [3, 8])
def test_programs_of_several_heads(both, assert_near, monkeypatch, at_once):
    def make(blocks, dim, place):
        return plain(blocks, dim)

    monkeypatch.setattr(triton_backend, "MAX_SINGLE_HEAD_ROWS", 0)
    monkeypatch.setattr(triton_backend, "HEADS_AT_ONCE", at_once)
    found, expected = both((32, 32), 16, NORMS["query and key"], make)
    assert_near(found[0], expected[0], F32)
    assert_memory_is_near(found[1], expected[1], assert_near)


def test_dimensions_need_be_no_powers_of_two(both, assert_near):
    def make(blocks, dim, place):
        return plain(blocks, dim)

    norms = (norm(24, 1), norm(24, 2), None)
    (y, memory), (expected, expected_memory) = both((24, 40), 6, norms, make)
    assert_near(y, expected, F32)
    assert_memory_is_near(memory, expected_memory, assert_near)


def test_narrow_results_are_rounded_once(both, assert_near):
    def make(blocks, dim, place):
        return plain(blocks, dim, torch.float16)

    (y, memory), (expected, expected_memory) = both(
        (32, 32), 4, NORMS["query and key"], make, dtype=torch.float16
    )
    assert y.dtype == torch.float16
    assert_near(y, expected, (5e-4, 5e-3))
    for mine, theirs in zip(memory[1::2], expected_memory[1::2], strict=True):
        assert torch.equal(owned(mine).view(torch.int16), owned(theirs).view(torch.int16))


@pytest.mark.parametrize("formats", [("q8_0", "q4_0"), ("q4_0", "q8_0")])
def test_codes_are_those_of_the_reference(both, formats):
    """Without norms and rotation the same numbers are coded, so every bit is the same."""

    def make(blocks, dim, place):
        return coded(blocks, dim, formats[place], False)

    (_, memory), (_, expected_memory) = both((64, 32), 0, NORMS["none"], make)
    for place, (mine, theirs) in enumerate(zip(memory, expected_memory, strict=True)):
        for a, b in ((mine.codes, theirs.codes), (mine.scales, theirs.scales)):
            if place < 2:
                a, b = owned(a), owned(b)
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


def test_rotated_codes_stand_for_the_same_numbers(both, assert_near):
    def make(blocks, dim, place):
        return coded(blocks, dim, "q8_0", True)

    (y, memory), (expected, expected_memory) = both(
        (32, 64), 4, (norm(32, 1), norm(32, 2), None), make
    )
    assert_near(y, expected, F32)
    for place, (mine, theirs) in enumerate(zip(memory, expected_memory, strict=True)):
        pick = owned if place < 2 else torch.clone
        read, meant = (codecs.numbers(x, pick).nan_to_num(0) for x in (mine, theirs))
        # A number between two codes may go either way, and one in the last place of a scale too.
        step = pick(theirs.scales).float().nan_to_num(0).repeat_interleave(32, -1)
        assert ((read - meant).abs() <= 1.2 * step).all()
        assert float((read - meant).norm() / meant.norm()) < 1e-3


def test_a_layer_that_stores_nothing_only_prepares_its_query(rows, numbers, assert_near):
    q = numbers(len(rows.positions), HEADS, 32)
    memory = [plain(2, 32) for _ in range(4)]
    args = (NORMS["query and key"], rope_tables(4), tuple(memory[:2]), tuple(memory[2:]))
    rest = (*args, rows, 0, torch.float32)
    found = qk_rope_write(q, None, None, *rest)
    assert_near(found, qk_rope_write(q, None, None, *rest, module=reference), F32)
    assert all(x.isnan().all() for x in memory)


def test_it_says_what_it_cannot_do(numbers):
    q, k, v = numbers(9, HEADS, 32), numbers(9, KV_HEADS, 32), numbers(9, KV_HEADS, 64)
    rest = (NORMS["none"], None, (plain(2, 32), plain(2, 64)), 0, torch.float32)

    def refusal(arguments, **changes):
        return triton_backend.supports(replace(arguments, **changes)).reason

    arguments = arguments_of(q, k, v, *rest)
    assert refusal(arguments) == ""
    assert "as many dimensions" in refusal(arguments_of(q, k, None, *rest))
    assert "bfloat16" in refusal(arguments, dtype=torch.bfloat16)
    assert "queries of torch.float64" in refusal(arguments, dtype=torch.float64)
    assert "stored as q3" in refusal(
        arguments, keys=replace(arguments.keys, dtype=None, format="q3")
    )


def test_projections_that_are_not_contiguous_are_copied(rows, numbers):
    q = numbers(len(rows.positions), HEADS, 32)
    memory = [plain(2, 32) for _ in range(4)]
    rest = (NORMS["query and key"], rope_tables(4), tuple(memory[:2]), tuple(memory[2:]), rows, 0)
    apart = q.repeat_interleave(2, 2)[..., ::2]
    found, expected = (qk_rope_write(x, None, None, *rest, torch.float32) for x in (apart, q))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("formats", ["plain", "q8_0"])
def test_keys_and_values_without_queries(rows, numbers, assert_near, formats):
    """As of rows whose queries are not needed: those of a drafter's context."""

    def make(blocks, dim):
        return plain(blocks, dim) if formats == "plain" else coded(blocks, dim, "q8_0", False)

    count = len(rows.positions)
    q, k, v = (numbers(count, heads, 32) for heads in (0, KV_HEADS, KV_HEADS))
    norms, found = (None, norm(32, 2), None), []
    for module in (triton_backend, reference):
        memory = [make(n, 32) for n in (rows.blocks, rows.blocks, 1, 1)]
        args = (norms, rope_tables(16), tuple(memory[:2]), tuple(memory[2:]), rows, 0)
        query = qk_rope_write(q, k, v, *args, torch.float32, module=module)
        assert query.shape == (count, 0, 32)
        found.append([x if formats == "plain" else codecs.numbers(x) for x in memory])
    assert_memory_is_near(*found, assert_near if formats == "plain" else near_codes)


def near_codes(mine, theirs, bound):
    """A number between two codes may go either way."""
    assert float((mine - theirs).norm() / theirs.norm()) < 1e-3
