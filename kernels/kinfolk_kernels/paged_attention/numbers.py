"""The kernel that decodes quantised chunks to plain numbers, once for all tiles of a slice.

A slice of thousands of rows has a hundred tiles for each key head, and each reads every chunk that
it sees. Decoding in each tile would also use the registers of three quarters of its rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.coded_tiles import (
    CHUNK_POSITIONS,
    KV_PLAIN,
    KV_Q4_0,
    columns,
    load_codes,
    load_tile,
    rotate_halves,
    rotate_rows,
)
from kinfolk_kernels.dependent import start_dependents, wait_for_producers


@triton.jit
def _decode(
    data, scales, out, DIM: tl.constexpr, SIZE: tl.constexpr, ROW: tl.constexpr,
    FORMAT: tl.constexpr, ROTATED: tl.constexpr,
):  # fmt: skip
    """Store the vectors of a chunk, quantised or plain, as numbers of the dtype of ``out``."""
    row = tl.arange(0, CHUNK_POSITIONS)
    number = out.dtype.element_ty
    to = out + (row * DIM)[:, None]
    if FORMAT == KV_PLAIN:
        d = tl.arange(0, SIZE)
        x = load_tile(data, row * ROW, row >= 0, DIM, SIZE, number, False)
        tl.store(to + d[None, :], x, mask=(d < DIM)[None, :])
    else:
        x, high = load_codes(
            data, scales, row * ROW, row * (DIM // 32), row >= 0, DIM, FORMAT, number, False
        )
        if ROTATED:
            x = x.to(tl.float32)
            if FORMAT == KV_Q4_0:
                x, high = rotate_halves(x, high.to(tl.float32), CHUNK_POSITIONS, DIM // 2)
            else:
                x = rotate_rows(x, CHUNK_POSITIONS, DIM)
        tl.store(to + columns(DIM, FORMAT, 0)[None, :], x.to(number))
        if FORMAT == KV_Q4_0:
            tl.store(to + columns(DIM, FORMAT, 1)[None, :], high.to(number))


@triton.jit(do_not_specialize=["table_width", "entries_each", "first_head"])
def numbers_kernel(
    entries, long, blocks, table_width, numbered, entries_each, first_head,
    k_ptr, k_scales, k_block, ks_block, v_ptr, v_scales, v_block, vs_block, k_out, v_out,
    DIM: tl.constexpr, VALUE_DIM: tl.constexpr, SIZE: tl.constexpr, VALUE_SIZE: tl.constexpr,
    K_ROW: tl.constexpr, V_ROW: tl.constexpr, K_FORMAT: tl.constexpr, V_FORMAT: tl.constexpr,
    ROTATED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (entries of the longest table; key heads from ``first_head`` on; sequences).

    ``numbered`` becomes the block table of the decoded chunks. Keys stay rotated, as queries are;
    with ``ROTATED``, values are rotated back.
    """
    start_dependents(PDL)
    wait_for_producers(PDL)
    entry, heads = tl.program_id(0), tl.num_programs(1)
    sequence = tl.load(long + tl.program_id(2)).to(tl.int64)
    if entry >= tl.load(entries + sequence):
        return
    block = tl.load(blocks + sequence * table_width + entry).to(tl.int64)
    place = tl.program_id(2) * entries_each + entry
    if tl.program_id(1) == 0:
        tl.store(numbered + sequence * table_width + entry, place)
    head = first_head + tl.program_id(1)
    to = (place.to(tl.int64) * heads + tl.program_id(1)) * CHUNK_POSITIONS
    _decode(
        k_ptr + block * k_block + head * (CHUNK_POSITIONS * K_ROW),
        k_scales + block * ks_block + head * (CHUNK_POSITIONS * (DIM // 32)),
        k_out + to * DIM, DIM, SIZE, K_ROW, K_FORMAT, False,
    )  # fmt: skip
    _decode(
        v_ptr + block * v_block + head * (CHUNK_POSITIONS * V_ROW),
        v_scales + block * vs_block + head * (CHUNK_POSITIONS * (VALUE_DIM // 32)),
        v_out + to * VALUE_DIM, VALUE_DIM, VALUE_SIZE, V_ROW, V_FORMAT, ROTATED,
    )  # fmt: skip
