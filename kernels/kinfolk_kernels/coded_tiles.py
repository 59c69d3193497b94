"""Tiles of stored keys and values in registers: loads and stores of every storage format.

A tile of plain numbers or of q8_0 is [N, D]. A tile of q4_0 is two halves [N, D / 2], because a
byte holds two numbers 16 columns apart; ``columns`` maps a half to its columns. A product over D is
the sum of the products of the halves, so the halves are never interleaved.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels import rows

CHUNK_POSITIONS = tl.constexpr(rows.CHUNK_POSITIONS)

FORMAT_NUMBERS = {"plain": 0, "q8_0": 1, "q4_0": 2}
KV_PLAIN, KV_Q8_0, KV_Q4_0 = (tl.constexpr(number) for number in FORMAT_NUMBERS.values())


@triton.jit
def columns(SIZE: tl.constexpr, FORMAT: tl.constexpr, HALF: tl.constexpr):
    """The dimensions of the columns of a tile: [SIZE], or [SIZE / 2] for a half of q4_0."""
    if FORMAT == KV_Q4_0:
        c = tl.arange(0, SIZE // 2)
        dimensions = c // 16 * 32 + c % 16 + 16 * HALF
    else:
        dimensions = tl.arange(0, SIZE)
    return dimensions


@triton.jit
def load_tile(
    data, at, seen, DIM: tl.constexpr, SIZE: tl.constexpr, DOT: tl.constexpr, MASKED: tl.constexpr
):
    """Plain numbers [N, SIZE] of the rows at offsets ``at`` [N]; zero where not ``seen`` [N]."""
    d = tl.arange(0, SIZE)
    pointers = data + at[:, None] + d[None, :]
    if DIM != SIZE:
        tile = tl.load(pointers, mask=seen[:, None] & (d < DIM)[None, :], other=0.0)
    elif MASKED:
        tile = tl.load(pointers, mask=seen[:, None], other=0.0)
    else:
        tile = tl.load(pointers)
    return tile.to(DOT)


@triton.jit
def load_codes(
    codes,
    scales,
    at,
    scale_at,
    seen,
    DIM: tl.constexpr,
    FORMAT: tl.constexpr,
    DOT: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Quantised rows -> two tiles: of q4_0 the halves [N, DIM / 2], of q8_0 [N, DIM] twice."""
    BYTES: tl.constexpr = DIM if FORMAT == KV_Q8_0 else DIM // 2
    N: tl.constexpr = at.shape[0]
    pointers = codes + at[:, None] + tl.arange(0, BYTES)[None, :]
    scale_pointers = scales + scale_at[:, None] + tl.arange(0, DIM // 32)[None, :]
    if MASKED:
        words = tl.load(pointers, mask=seen[:, None], other=0)
        scale = tl.load(scale_pointers, mask=seen[:, None], other=0.0)
    else:
        words = tl.load(pointers)
        scale = tl.load(scale_pointers)
    scale = scale.to(DOT)[:, :, None]
    words = tl.reshape(words, [N, DIM // 32, BYTES * 32 // DIM])
    if FORMAT == KV_Q8_0:
        low = words.to(tl.int8, bitcast=True).to(DOT) * scale
        high = low
    else:
        low = ((words & 15).to(tl.int8) - 8).to(DOT) * scale
        high = ((words >> 4).to(tl.int8) - 8).to(DOT) * scale
    return tl.reshape(low, [N, BYTES]), tl.reshape(high, [N, BYTES])


@triton.jit
def round_away(x):
    """Round to the nearest integer, halves away from zero."""
    size = tl.abs(x)
    whole = tl.floor(size)
    rounded = whole + tl.floor(2.0 * (size - whole))
    return tl.where(x < 0, -rounded, rounded)


@triton.jit
def encode_q8_0(x, DIM: tl.constexpr):
    """x float32 [DIM] -> codes int8 [DIM / 32, 32], scales float32 [DIM / 32]."""
    blocks = tl.reshape(x, [DIM // 32, 32])
    scale = tl.div_rn(tl.max(tl.abs(blocks), 1), 127.0)
    inverse = tl.where(scale == 0, 0.0, tl.div_rn(1.0, tl.where(scale == 0, 1.0, scale)))
    return round_away(blocks * inverse[:, None]).to(tl.int8), scale


@triton.jit
def encode_q4_0(x, DIM: tl.constexpr):
    """x float32 [DIM] -> codes uint8 [DIM / 32, 16], scales float32 [DIM / 32].

    Compile it without fused multiply-add, which would change codes in rare cases.
    """
    blocks = tl.reshape(x, [DIM // 32, 32])
    first = tl.argmax(tl.abs(blocks), 1, tie_break_left=True)
    here = tl.arange(0, 32)[None, :] == first[:, None]
    scale = tl.sum(tl.where(here, blocks, 0.0), 1) * -0.125
    inverse = tl.where(scale == 0, 0.0, tl.div_rn(1.0, tl.where(scale == 0, 1.0, scale)))
    shifted = blocks * inverse[:, None] + 8.5
    codes = tl.minimum(tl.maximum(shifted, 0.0), 15.0).to(tl.int32)
    halves = tl.reshape(codes, [DIM // 32, 2, 16])
    weight = tl.where(tl.arange(0, 2) == 0, 1, 16)[None, :, None]
    return tl.sum(halves * weight, 1).to(tl.uint8), scale


@triton.jit
def rotate_rows(x, ROWS: tl.constexpr, DIM: tl.constexpr):
    """Orthonormal Walsh-Hadamard transform of each row of x float32 [ROWS, DIM], its own inverse.

    DIM is a power of two.
    """
    half: tl.constexpr = DIM // 2
    for stage in tl.static_range(0, 9):
        if (half >> stage) > 0:
            pairs = tl.reshape(x, [ROWS * (1 << stage), 2, half >> stage])
            a, b = tl.split(tl.permute(pairs, [0, 2, 1]))
            pairs = tl.permute(tl.join(a + b, a - b), [0, 2, 1])
            x = tl.reshape(pairs, [ROWS, DIM])
    return x * (1.0 / tl.sqrt(DIM * 1.0))


@triton.jit
def rotate_halves(low, high, ROWS: tl.constexpr, SIZE: tl.constexpr):
    """``rotate_rows`` of rows in two halves, as q4_0 stores them."""
    low = rotate_rows(low, ROWS, SIZE)
    high = rotate_rows(high, ROWS, SIZE)
    return (low + high) * 0.7071067811865476, (low - high) * 0.7071067811865476
