"""The kernel that compresses the keys of chunks."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.chunk_digest import op
from kinfolk_kernels.coded_tiles import CHUNK_POSITIONS, KV_PLAIN, KV_Q8_0, rotate_rows
from kinfolk_kernels.dependent import start_dependents, wait_for_producers

STEP_OF_DEVIATION = tl.constexpr(op.BEST_STEP)
MOST_SCALE = tl.constexpr(op.MAX_DIGEST_SCALE)


@triton.jit
def _vectors(data, scales, first, DIM: tl.constexpr, FORMAT: tl.constexpr, TILE: tl.constexpr):
    """The vectors ``first`` and following of a head's chunk, in float32 [TILE, DIM]."""
    row = (first + tl.arange(0, TILE))[:, None]
    d = tl.arange(0, DIM)[None, :]
    if FORMAT == KV_PLAIN:
        x = tl.load(data + row * DIM + d).to(tl.float32)
    else:
        scale = tl.load(scales + row * (DIM // 32) + d // 32).to(tl.float32)
        if FORMAT == KV_Q8_0:
            number = tl.load(data + row * DIM + d).to(tl.int8, bitcast=True)
        else:
            byte = tl.load(data + row * (DIM // 2) + d // 32 * 16 + d % 16).to(tl.int32)
            number = (byte >> (d % 32 // 16 * 4) & 15) - 8
        x = number.to(tl.float32) * scale
    return x


@triton.jit
def chunk_digest_kernel(
    blocks, firsts, places, k_ptr, k_scales, codes_ptr, scales_ptr,
    k_block, ks_block, codes_place, scales_place,
    DIM: tl.constexpr, K_ROW: tl.constexpr, K_FORMAT: tl.constexpr, K_ROTATED: tl.constexpr,
    TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (chunks, key heads): a program compresses a head of a chunk, TILE vectors at a time.
    K_ROW is the elements of a stored vector, or its bytes of codes."""
    start_dependents(PDL)
    wait_for_producers(PDL)
    place = tl.load(places + tl.program_id(0)).to(tl.int64)
    if place < 0:
        return
    block = tl.load(blocks + tl.program_id(0)).to(tl.int64)
    start = tl.load(firsts + tl.program_id(0)).to(tl.int64)
    head = tl.program_id(1)
    data = k_ptr + head * (CHUNK_POSITIONS * K_ROW)
    scales = k_scales + head * (CHUNK_POSITIONS * (DIM // 32))
    total = tl.zeros([DIM], tl.float32)
    for first in range(0, CHUNK_POSITIONS, TILE):
        x = _vectors(data + start * k_block, scales + start * ks_block, first, DIM, K_FORMAT, TILE)
        total += tl.sum(x, 0)
    centre = (total * (1.0 / CHUNK_POSITIONS))[None, :]
    for first in range(0, CHUNK_POSITIONS, TILE):
        x = _vectors(data + block * k_block, scales + block * ks_block, first, DIM, K_FORMAT, TILE)
        x = x - centre
        if not K_ROTATED:
            x = rotate_rows(x, TILE, DIM)
        squares = tl.sum(x * x, 1) * (1.0 / DIM)
        # Of NaN, the comparison is false.
        finite = squares < float("inf")
        x = tl.where(finite[:, None], x, 0.0)
        step = tl.sqrt(tl.where(finite, squares, 0.0)) * STEP_OF_DEVIATION
        inverse = tl.where(step > 0, 1.0 / tl.where(step > 0, step, 1.0), 0.0)
        code = tl.minimum(tl.maximum(tl.floor(x * inverse[:, None]) + 2.0, 0.0), 3.0)
        level = code - 1.5
        scale = tl.sum(x * level, 1) / tl.sum(level * level, 1)
        vector = head * CHUNK_POSITIONS + first + tl.arange(0, TILE)
        to = scales_ptr + place * scales_place + vector
        tl.store(to, tl.minimum(scale, MOST_SCALE).to(tl.float16))
        parts = tl.reshape(code.to(tl.int32), [TILE, 4, DIM // 4])
        packed = tl.sum(parts << (2 * tl.arange(0, 4))[None, :, None], 1).to(tl.uint8)
        byte = vector[:, None] * (DIM // 4) + tl.arange(0, DIM // 4)[None, :]
        tl.store(codes_ptr + place * codes_place + byte, packed)
