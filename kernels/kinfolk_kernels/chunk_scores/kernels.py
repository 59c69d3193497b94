"""The kernels that score chunks: how much attention a chunk gets, and its largest share.

A pair is a row and a query head. The attention of a pair to a chunk is kept as the binary logarithm
of its sum of exponentials, so that chunks can be summed in any tile without overflow.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.chunk_scores import op
from kinfolk_kernels.coded_tiles import CHUNK_POSITIONS, rotate_rows
from kinfolk_kernels.dependent import start_dependents, wait_for_producers

NO_SCORE = tl.constexpr(op.UNSCORED)


@triton.jit
def rotate_queries_kernel(
    q_ptr, out_ptr, q_row, q_layer, q_head,
    LAYERS: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (rows x layers, heads): a program rotates one query."""
    start_dependents(PDL)
    wait_for_producers(PDL)
    row, layer = tl.program_id(0) // LAYERS, tl.program_id(0) % LAYERS
    d = tl.arange(0, DIM)
    at = q_ptr + row.to(tl.int64) * q_row + layer * q_layer + tl.program_id(1) * q_head
    x = tl.reshape(tl.load(at + d).to(tl.float32), [1, DIM])
    x = tl.reshape(rotate_rows(x, 1, DIM), [DIM])
    to = out_ptr + (tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)) * DIM + d
    tl.store(to, x.to(out_ptr.dtype.element_ty))


@triton.jit
def _query(q_ptr, at, inside, part: tl.constexpr, DIM: tl.constexpr):
    """A quarter of the queries at offsets ``at`` [pairs], transposed: [DIM / 4, pairs]."""
    d = part * (DIM // 4) + tl.arange(0, DIM // 4)
    return tl.load(q_ptr + at[None, :] + d[:, None], mask=inside[None, :], other=0.0)


@triton.jit
def _levels(words, part: tl.constexpr, DOT: tl.constexpr):
    """Twice the levels of the codes in bits 2 ``part`` of ``words``, -3, -1, 1 or 3.

    A conversion of integers takes as long as a power of two does. So the bits of 2 c are put into
    those of a number whose last bit counts 1: 1024 in float16, 128 in bfloat16.
    """
    twice = (words << 1 if part == 0 else words >> (2 * part - 1)) & 6
    if DOT.is_fp16():
        levels = (twice.to(tl.int16) | 0x6400).to(tl.float16, bitcast=True) - 1027.0
    elif DOT.is_bf16():
        levels = (twice.to(tl.int16) | 0x4300).to(tl.bfloat16, bitcast=True) - 131.0
    else:
        levels = twice.to(DOT) - 3.0
    return levels.to(DOT)


@triton.jit
def _product(words, q, s, part: tl.constexpr):
    """Adds the products of a quarter [DIM / 4, pairs] of the queries with the codes to ``s``."""
    levels = _levels(words, part, q.dtype)
    return tl.dot(levels, q, s, out_dtype=tl.float32, input_precision="ieee")


@triton.jit(do_not_specialize=["rows", "chunks", "tiles"])
def chunk_attention_kernel(
    q_ptr, places, codes_ptr, scales_ptr, out_ptr, rows, chunks, tiles,
    q_row, q_layer, q_head, codes_place, codes_layer, scales_place, scales_layer, factor,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, DIM: tl.constexpr, PAIRS: tl.constexpr,
    RUN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (runs of RUN chunks, key heads x tiles, layers): a program adds up the attention of
    PAIRS pairs of a row and a query head to each chunk of a run.

    ``out`` float32 [chunks, layers x key heads x rows x GROUP]. ``factor`` includes log2 e, and a
    half, as products are with twice the levels.
    """
    start_dependents(PDL)
    wait_for_producers(PDL)
    layer = tl.program_id(2)
    head, tile = tl.program_id(1) // tiles, tl.program_id(1) % tiles
    pair = tile * PAIRS + tl.arange(0, PAIRS)
    inside = pair < rows * GROUP
    at = (pair // GROUP).to(tl.int64) * q_row + layer * q_layer
    at += (head * GROUP + pair % GROUP) * q_head
    q0, q1 = _query(q_ptr, at, inside, 0, DIM), _query(q_ptr, at, inside, 1, DIM)
    q2, q3 = _query(q_ptr, at, inside, 2, DIM), _query(q_ptr, at, inside, 3, DIM)
    key = tl.arange(0, CHUNK_POSITIONS)
    vectors = head * CHUNK_POSITIONS + key
    bytes_at = vectors[:, None] * (DIM // 4) + tl.arange(0, DIM // 4)[None, :]
    codes_ptr += layer.to(tl.int64) * codes_layer
    scales_ptr += layer.to(tl.int64) * scales_layer
    pairs = KV_HEADS * GROUP * rows
    to = out_ptr + layer * pairs + head * GROUP * rows + pair
    width = tl.num_programs(2).to(tl.int64) * pairs
    first = tl.program_id(0) * RUN
    for chunk in range(first, tl.minimum(first + RUN, chunks)):
        place = tl.load(places + chunk)
        # A chunk without a digest reads the first one, and forgets it.
        held = tl.maximum(place, 0).to(tl.int64)
        words = tl.load(codes_ptr + held * codes_place + bytes_at)
        scale = tl.load(scales_ptr + held * scales_place + vectors).to(tl.float32) * factor
        s = tl.zeros([CHUNK_POSITIONS, PAIRS], tl.float32)
        s = _product(words, q0, s, 0)
        s = _product(words, q1, s, 1)
        s = _product(words, q2, s, 2)
        s = _product(words, q3, s, 3)
        s = s * scale[:, None]
        most = tl.max(s, 0)
        total = most + tl.log2(tl.sum(tl.exp2(s - most[None, :]), 0))
        total = tl.where(place < 0, float("-inf"), total)
        tl.store(to + chunk * width, total, mask=inside)


@triton.jit(do_not_specialize=["chunks"])
def attention_totals_kernel(
    attention_ptr, out_ptr, chunks, pairs,
    PAIRS: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (pairs / PAIRS,): a program adds up the attention of PAIRS pairs to all chunks, CHUNKS
    at a time."""
    start_dependents(PDL)
    wait_for_producers(PDL)
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    inside = pair < pairs
    most = tl.full([PAIRS], float("-inf"), tl.float32)
    total = tl.zeros([PAIRS], tl.float32)
    for first in range(0, chunks, CHUNKS):
        chunk = first + tl.arange(0, CHUNKS)
        at = attention_ptr + chunk.to(tl.int64)[:, None] * pairs + pair[None, :]
        seen = (chunk < chunks)[:, None] & inside[None, :]
        x = tl.load(at, mask=seen, other=float("-inf"))
        highest = tl.maximum(most, tl.max(x, 0))
        # Of chunks without a digest alone, inf - inf would be NaN.
        base = tl.where(highest == float("-inf"), 0.0, highest)
        total = total * tl.exp2(most - base) + tl.sum(tl.exp2(x - base[None, :]), 0)
        most = highest
    tl.store(out_ptr + pair, most + tl.log2(total), mask=inside)


@triton.jit(do_not_specialize=["chunks"])
def largest_share_kernel(
    attention_ptr, totals_ptr, places, out_ptr, chunks, pairs,
    PAIRS: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (chunks / CHUNKS,): a program finds the largest share that a pair gives to a chunk."""
    start_dependents(PDL)
    wait_for_producers(PDL)
    chunk = tl.program_id(0) * CHUNKS + tl.arange(0, CHUNKS)
    real = chunk < chunks
    place = tl.load(places + chunk, mask=real, other=-1)
    scored = place >= 0
    best = tl.zeros([CHUNKS], tl.float32)
    for first in range(0, pairs, PAIRS):
        pair = first + tl.arange(0, PAIRS)
        seen = scored[:, None] & (pair < pairs)[None, :]
        at = attention_ptr + chunk.to(tl.int64)[:, None] * pairs + pair[None, :]
        x = tl.load(at, mask=seen, other=float("-inf"))
        total = tl.load(totals_ptr + pair, mask=pair < pairs, other=0.0)
        # If no chunk has a digest, totals are not finite.
        total = tl.where(total == float("-inf"), 0.0, total)
        best = tl.maximum(best, tl.max(tl.exp2(x - total[None, :]), 1))
    tl.store(out_ptr + chunk, tl.where(scored, best, NO_SCORE), mask=real)
