"""The kernel before attention on the GPU: heads of released models against the reference on the
CPU, and the very codes of the definition."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace

import pytest
import torch

from kinfolk_kernels import codecs
from kinfolk_kernels.codecs import FORMATS, Coded
from kinfolk_kernels.qk_rope_write import op as reference
from kinfolk_kernels.qk_rope_write import triton_backend
from kinfolk_kernels.qk_rope_write.head_norm import HeadNorm
from kinfolk_kernels.qk_rope_write.op import QKRopeWriteArguments
from kinfolk_kernels.rows import CHUNK_POSITIONS
from kinfolk_kernels.stored_kind import StoredKind

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

F32 = (5e-6, 2e-5)
NARROW = (4e-3, 2e-1)
"""One rounding to bfloat16; a norm leaves numbers of 30 among ones."""


@dataclass(frozen=True)
class Shape:
    """``pairs``: the rotated pairs of numbers of a head."""

    heads: int
    kv_heads: int
    dim: int
    pairs: int


SHAPES = {
    "24 and 4 of 256, a quarter turned": Shape(24, 4, 256, 32),
    "16 and 2 of 512": Shape(16, 2, 512, 256),
    "64 and 8 of 128": Shape(64, 8, 128, 64),
}
FIRST = SHAPES["24 and 4 of 256, a quarter turned"]


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
def rows(steps, request):
    """Rows of all kinds, on the host, with a slice of a prompt if a test asks for so many more."""
    more = getattr(request, "param", 0)
    return steps.build(
        steps.certain(62, 4), steps.random_tree(63, 30), steps.chain(5, 2), steps.certain(300, 1),
        *([steps.certain(0, more)] if more else []), places=3,
    )  # fmt: skip


def rope_tables(pairs):
    angle = 1e6 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    turn = torch.arange(400, dtype=torch.float64)[:, None] * angle
    return turn.cos().float(), turn.sin().float()


def section(blocks, shape, format, dtype, rotated):
    """A section of blocks that hold others too; unwritten memory is NaN or 0x7F."""

    def plane(width, dtype):
        used = shape.kv_heads * CHUNK_POSITIONS * width
        whole = torch.full((blocks, 3 * used), 0x7F, dtype=torch.uint8).to(dtype)
        if dtype != torch.uint8:
            whole.fill_(torch.nan)
        return whole[:, used : 2 * used].view(blocks, shape.kv_heads, CHUNK_POSITIONS, width)

    if not format:
        return plane(shape.dim, dtype)
    codes = plane(shape.dim // FORMATS[format], torch.uint8)
    return Coded(format, codes, plane(shape.dim // 32, torch.float16), rotated)


def there(value):
    """Tensors and what holds them on the device, strides kept."""
    if isinstance(value, torch.Tensor):
        # A copy to the device would lose how far blocks are apart.
        whole = value._base if value._base is not None else value
        moved = whole.cuda()
        return moved.as_strided(value.shape, value.stride(), value.storage_offset())
    if isinstance(value, tuple):
        return tuple(there(one) for one in value)
    if dataclasses.is_dataclass(value):
        found = {f.name: there(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return replace(value, **found)
    return value


@pytest.fixture
def both(rows, numbers, on_gpu):
    """``both(shape, formats, ...)``: query and memory, of the kernel and of the reference."""
    device_rows = replace(on_gpu(rows), table=on_gpu(rows.table))

    def run(shape, formats, dtype, *, plain=False, rotated=False, own_values=True):
        count, dim = len(rows.positions), shape.dim
        widths = (2 * shape.heads * dim, shape.kv_heads * dim, shape.kv_heads * dim)
        parts = numbers(count, sum(widths)).clamp(-50, 50).split(widths, 1)
        q = parts[0].view(count, shape.heads, 2 * dim)[..., :dim]
        k, v = (x.view(count, shape.kv_heads, dim) for x in parts[1:])
        norms = (None, None, None)
        if not plain:
            weights = [1 + 0.3 * numbers(dim).clamp(-2, 2) for _ in range(2)]
            norms = (*(HeadNorm(w, 1e-6) for w in weights), HeadNorm(None, 1e-6))
        tables = None if plain else rope_tables(shape.pairs)
        memory = [
            tuple(section(n, shape, f, dtype, rotated) for f in formats) for n in (rows.blocks, 2)
        ]
        args = (q, k, v if own_values else None, norms, tables, *memory)
        moved = tuple(there(x) for x in args)
        found = qk_rope_write(*moved, device_rows, 0, dtype)
        expected = qk_rope_write(*args, rows, 0, dtype, module=reference)
        return (found.cpu(), [*moved[5], *moved[6]]), (expected, [*memory[0], *memory[1]])

    return run


def bits(x):
    return x.contiguous().view(torch.uint8)


def owned(place, plane):
    """Without the block that the reference writes rows of the arena to as well."""
    return plane.cpu()[1:] if place < 2 else plane.cpu()


def written(mine, theirs):
    """What is stored, at the same places: zeros of the others would make the root mean square of
    all, which errors are compared with, too small."""
    assert torch.equal(mine.isnan(), theirs.isnan())
    places = ~theirs.isnan().all(-1)
    return mine[places], theirs[places]


@pytest.mark.parametrize("own_values", [True, False])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_equals_the_reference(both, assert_near, shape, own_values):
    (q, memory), (expected, meant) = both(shape, ("", ""), torch.float32, own_values=own_values)
    assert_near(q, expected, F32)
    for place, (mine, theirs) in enumerate(zip(memory, meant, strict=True)):
        assert_near(*written(owned(place, mine), owned(place, theirs)), F32)


@pytest.mark.parametrize(
    "rows", [0, triton_backend.MAX_SINGLE_HEAD_ROWS], indirect=True, ids=["few", "many"]
)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_bfloat16(both, assert_near, shape):
    (q, memory), (expected, meant) = both(shape, ("", ""), torch.bfloat16)
    assert q.dtype == torch.bfloat16
    assert_near(q, expected, NARROW)
    for place, (mine, theirs) in enumerate(zip(memory, meant, strict=True)):
        assert_near(*written(owned(place, mine), owned(place, theirs)), NARROW)


@pytest.mark.parametrize("formats", [("q8_0", "q4_0"), ("q4_0", "q8_0")])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_codes_are_those_of_the_definition(both, shape, formats):
    """Without norms and rotation the same numbers are coded, so every bit is the same."""
    (_, memory), (_, meant) = both(shape, formats, torch.float32, plain=True)
    for place, (mine, theirs) in enumerate(zip(memory, meant, strict=True)):
        for a, b in ((mine.codes, theirs.codes), (mine.scales, theirs.scales)):
            assert torch.equal(bits(owned(place, a)), bits(owned(place, b)))


def test_rotated_codes_stand_for_the_same_numbers(both, assert_near):
    (q, memory), (expected, meant) = both(FIRST, ("q8_0", "q4_0"), torch.bfloat16, rotated=True)
    assert_near(q, expected, NARROW)
    for place, (mine, theirs) in enumerate(zip(memory, meant, strict=True)):
        mine, theirs = (
            replace(x, codes=owned(place, x.codes), scales=owned(place, x.scales))
            for x in (mine, theirs)
        )
        read, wanted = (codecs.numbers(x).nan_to_num(0) for x in (mine, theirs))
        # A number between two codes may go either way, and one in the last place of a scale too.
        step = theirs.scales.float().nan_to_num(0).abs().repeat_interleave(32, -1)
        assert ((read - wanted).abs() <= 1.2 * step).all()
        assert float((read - wanted).norm() / wanted.norm()) < 5e-3


def test_a_layer_that_stores_nothing_only_prepares_its_query(rows, numbers, on_gpu, assert_near):
    q = numbers(len(rows.positions), 8, 256)
    norms = (HeadNorm(1 + 0.1 * numbers(256), 1e-6), None, None)
    memory = tuple(section(2, FIRST, "", torch.bfloat16, False) for _ in range(4))
    args = (q, None, None, norms, rope_tables(32), memory[:2], memory[2:])
    moved = there(args)
    found = qk_rope_write(*moved, on_gpu(rows), 0, torch.float32)
    expected = qk_rope_write(*args, rows, 0, torch.float32, module=reference)
    assert_near(found.cpu(), expected, F32)
    assert all(x.isnan().all() for x in (*moved[5], *moved[6]))


def test_blocks_may_lie_beyond_the_reach_of_32_bits(steps, numbers, on_gpu):
    """38 blocks that are 2^26 numbers apart; the last of them is written."""
    rows = steps.build(steps.certain(2300, 3))
    block, stride = int(rows.write_row[0, 0]) // CHUNK_POSITIONS, 2**26
    assert block * stride > 2**31 - 1
    shape = (rows.blocks, 4, CHUNK_POSITIONS, 256)
    strides = (stride, CHUNK_POSITIONS * 256, 256, 1)
    pools = tuple(
        torch.empty(rows.blocks * stride, dtype=torch.bfloat16, device="cuda").as_strided(
            shape, strides
        )
        for _ in range(2)
    )
    q, k, v = (numbers(3, heads, 256).cuda() for heads in (8, 4, 4))
    arenas = tuple(
        torch.empty(1, 4, CHUNK_POSITIONS, 256, dtype=torch.bfloat16).cuda() for _ in range(2)
    )
    rest = (on_gpu(rows), 0, torch.bfloat16)
    qk_rope_write(q, k, v, (None, None, None), None, pools, arenas, *rest)
    offset = rows.write_row[0] % CHUNK_POSITIONS
    for pool, x in zip(pools, (k, v), strict=True):
        assert torch.equal(pool[block][:, offset.cuda()].transpose(0, 1), x.to(torch.bfloat16))
