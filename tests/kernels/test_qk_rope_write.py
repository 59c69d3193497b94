"""Norms of heads, rotation and storing, against the steps taken one by one in float64."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels import codecs
from kinfolk_kernels.codecs import Coded, decode, encode, rotate
from kinfolk_kernels.qk_rope_write import op as reference
from kinfolk_kernels.qk_rope_write.head_norm import HeadNorm
from kinfolk_kernels.qk_rope_write.op import QKRopeWriteArguments
from kinfolk_kernels.rows import CHUNK_POSITIONS
from kinfolk_kernels.stored_kind import StoredKind

HEADS, KV_HEADS, DIM, PAIRS = 6, 2, 32, 4
F32 = (2e-6, 2e-5)


def arguments_of(q, k, v, norms, tables, pools, pool_index, dtype):
    """The arguments of the op that fit its operands."""
    keys, values = (StoredKind.of(pool) for pool in pools)
    has_values = v is not None or k is None
    return QKRopeWriteArguments(
        norms, tables, keys, values, has_values, pool_index, dtype, q.device
    )


def qk_rope_write(q, k, v, norms, tables, pools, arenas, rows, pool_index, dtype, module=reference):
    arguments = arguments_of(q, k, v, norms, tables, pools, pool_index, dtype)
    return module.qk_rope_write(arguments, q, k, v, pools, arenas, rows)


@pytest.fixture
def rows(steps):
    """Rows of all kinds: pool rows, chain rows, arena rows."""
    return steps.build(steps.certain(60, 9), steps.random_tree(63, 7), steps.chain(5, 2), places=3)


@pytest.fixture
def rope_tables():
    angle = 1e4 ** (-torch.arange(PAIRS, dtype=torch.float64) / PAIRS)
    turn = torch.arange(200, dtype=torch.float64)[:, None] * angle
    return turn.cos().float(), turn.sin().float()


def plain(blocks, dim=DIM, dtype=torch.float32):
    return torch.full((blocks, KV_HEADS, CHUNK_POSITIONS, dim), torch.nan, dtype=dtype)


def coded(blocks, format, rotated):
    codes, scales = encode(format, torch.zeros(blocks, KV_HEADS, CHUNK_POSITIONS, DIM))
    return Coded(format, codes.fill_(0x7F), scales.fill_(torch.nan), rotated)


def normed(x, norm):
    if norm is None:
        return x.double()
    y = x.double() / (x.double().square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return y if norm.weight is None else y * norm.weight.double()


def turned(x, positions, rope_tables):
    cos, sin = (table.double()[positions][:, None] for table in rope_tables)
    pairs = torch.complex(x[..., :PAIRS], x[..., PAIRS : 2 * PAIRS]) * torch.complex(cos, sin)
    return torch.cat([pairs.real, pairs.imag, x[..., 2 * PAIRS :]], -1)


def stored(rows, pool, arena):
    """What was stored for each row, [R, heads, dim]."""
    target = torch.where(rows.arena_row >= 0, rows.arena_row, rows.write_row[0])
    at = (target // CHUNK_POSITIONS, slice(None), target % CHUNK_POSITIONS)
    held = (rows.arena_row >= 0)[:, None, None]
    from_pool, from_arena = codecs.numbers(pool), codecs.numbers(arena)
    return torch.where(held, from_arena[at[0] % len(from_arena), :, at[2]], from_pool[at])


def weight(seed):
    return 1 + 0.3 * torch.randn(DIM, generator=torch.Generator().manual_seed(seed))


NORMS = {
    "none": (None, None, None),
    "query and key": (HeadNorm(weight(1), 1e-6), HeadNorm(weight(2), 1e-5), None),
    "value without weight": (HeadNorm(None, 1e-6), None, HeadNorm(None, 1e-4)),
}


@pytest.mark.parametrize("norms", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("own_values", [True, False])
def test_equals_norm_rotation_and_storing(
    rows, rope_tables, numbers, assert_near, norms, own_values
):
    count = len(rows.positions)
    q, k = numbers(count, HEADS, DIM), numbers(count, KV_HEADS, DIM)
    v = numbers(count, KV_HEADS, DIM) if own_values else None
    pools, arenas = (tuple(plain(n) for _ in range(2)) for n in (rows.blocks, 1))
    found = qk_rope_write(q, k, v, norms, rope_tables, pools, arenas, rows, 0, torch.float32)
    expected = turned(normed(q, norms[0]), rows.positions, rope_tables)
    assert_near(found, expected, F32)
    keys = turned(normed(k, norms[1]), rows.positions, rope_tables)
    assert_near(stored(rows, pools[0], arenas[0]), keys, F32)
    # Values that are the keys are those before norm and rotation.
    values = normed(k if v is None else v, norms[2])
    assert_near(stored(rows, pools[1], arenas[1]), values, F32)


def test_without_keys_nothing_is_stored(rows, rope_tables, numbers):
    pools, arenas = (tuple(plain(n) for _ in range(2)) for n in (rows.blocks, 1))
    q = numbers(len(rows.positions), HEADS, DIM)
    found = qk_rope_write(q, None, None, NORMS["none"], None, pools, arenas, rows, 0, torch.float32)
    assert torch.equal(found, q)
    assert all(x.isnan().all() for x in (*pools, *arenas))


def test_the_query_may_be_half_of_a_wider_projection(rows, rope_tables, numbers):
    wide = numbers(len(rows.positions), HEADS, 2 * DIM)
    pools, arenas = (tuple(plain(n) for _ in range(2)) for n in (rows.blocks, 1))
    norms = NORMS["query and key"]
    found, again = (
        qk_rope_write(q, None, None, norms, rope_tables, pools, arenas, rows, 0, torch.float32)
        for q in (wide[..., :DIM], wide[..., :DIM].contiguous())
    )
    assert torch.equal(found, again)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_results_are_rounded_once(rows, rope_tables, numbers, dtype):
    q, k = numbers(len(rows.positions), HEADS, DIM), numbers(len(rows.positions), KV_HEADS, DIM)
    results = []
    for kind in (torch.float32, dtype):
        pools, arenas = (tuple(plain(n, dtype=kind) for _ in range(2)) for n in (rows.blocks, 1))
        y = qk_rope_write(
            q, k, None, NORMS["query and key"], rope_tables, pools, arenas, rows, 0, kind
        )
        results.append((y, stored(rows, pools[0], arenas[0])))
    (wide, wide_keys), (narrow, narrow_keys) = results
    assert torch.equal(wide.to(dtype), narrow)
    assert torch.equal(wide_keys.to(dtype), narrow_keys)


@pytest.mark.parametrize("formats", [("q8_0", "q4_0"), ("q4_0", "q8_0")])
@pytest.mark.parametrize("rotated", [False, True])
def test_keys_and_values_are_coded_apart(rows, rope_tables, numbers, formats, rotated):
    count = len(rows.positions)
    q, k, v = (numbers(count, n, DIM) for n in (HEADS, KV_HEADS, KV_HEADS))
    norms = NORMS["query and key"]
    pools, arenas = (
        tuple(coded(n, format, rotated) for format in formats) for n in (rows.blocks, 1)
    )
    wide_pools, wide_arenas = (tuple(plain(n) for _ in range(2)) for n in (rows.blocks, 1))
    rest = (rows, 0, torch.float32)
    found = qk_rope_write(q, k, v, norms, rope_tables, pools, arenas, *rest)
    expected = qk_rope_write(q, k, v, norms, rope_tables, wide_pools, wide_arenas, *rest)
    assert torch.equal(found, rotate(expected) if rotated else expected)
    for number, format in enumerate(formats):
        x = stored(rows, wide_pools[number], wide_arenas[number])
        written = decode(format, *encode(format, rotate(x) if rotated else x))
        assert torch.equal(stored(rows, pools[number], arenas[number]), written)
