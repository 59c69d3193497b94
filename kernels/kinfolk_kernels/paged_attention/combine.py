"""The kernel that combines the runs of each row in a fixed order, and applies the epilogue.

A program computes some dimensions of one row and head. The runs of a tile are summed as a tree, and
tiles one after another. A tile has ``BLOCK_RUNS`` runs, or ``FEW_RUNS`` if a row has no more.
All of this depends only on the sequence's number of runs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.activations import softplus
from kinfolk_kernels.coded_tiles import rotate_rows
from kinfolk_kernels.dependent import early, start_dependents, wait_for_producers
from kinfolk_kernels.paged_attention.decode import run_length
from kinfolk_kernels.row_outputs import WITH_SUMS, parts_of_sums, sums_place

FACTORS = {"identity": 1, "softplus": 2}
"""The value of ``FACTOR`` for each activation of a factor; 0 = no factor."""

_SOFTPLUS = tl.constexpr(FACTORS["softplus"])


FEW_RUNS = 8
"""Runs of a sequence of up to 512 positions, each of one chunk."""

_FEW = tl.constexpr(FEW_RUNS)


@triton.jit
def load_gates(
    at, at_factor, gate_ptr, factor_ptr, keep, GATE: tl.constexpr, FACTOR: tl.constexpr
):  # fmt: skip
    """Tiles of the gate and of the factor, at tiles of offsets; ones instead of what is missing."""
    gate = tl.full(at.shape, 1.0, tl.float32)
    factor = gate
    if GATE:
        gate = tl.load(gate_ptr + at, mask=keep, other=0.0).to(tl.float32)
    if FACTOR:
        factor = tl.load(factor_ptr + at_factor, mask=keep, other=0.0).to(tl.float32)
    return gate, factor


@triton.jit
def gated(y, gate, factor, GATE: tl.constexpr, FACTOR: tl.constexpr):
    """y float32 times the sigmoid of the gate, times the activation of the factor."""
    if GATE:
        y = y / (1.0 + tl.exp2(gate * -1.4426950408889634))
    if FACTOR:
        if FACTOR == _SOFTPLUS:
            factor = softplus(factor)
        y = y * factor
    return y


@triton.jit
def _add_runs(
    start, runs, total_runs, begin, d, inside, m, total, acc, part_o, part_m, part_l, slots,
    DIM: tl.constexpr, RUNS: tl.constexpr,
):  # fmt: skip
    """Add ``RUNS`` runs from ``start`` on to the maximum, the sum and the weighted values."""
    run = start + tl.arange(0, RUNS)
    real = run < total_runs
    # The run after the last is the arena's, which is stored in the last place.
    at = begin + tl.where(run < runs, run, slots - 1)
    highest = tl.load(part_m + at, mask=real, other=float("-inf"))
    sums = tl.load(part_l + at, mask=real, other=0.0)
    parts = tl.load(
        part_o + at[:, None] * DIM + d[None, :], mask=real[:, None] & inside[None, :], other=0.0
    )
    top = tl.maximum(m, tl.max(highest, 0))
    base = tl.where(top == float("-inf"), 0.0, top)
    weight = tl.exp2(highest - base)
    keep = tl.exp2(m - base)
    total = total * keep + tl.sum(weight * sums, 0)
    return top, total, acc * keep + tl.sum(weight[:, None] * parts, 0)


@triton.jit
def _round_even(x):
    """Round to the nearest integer, halves to even, for |x| below 2^22."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def _store_int8(
    y, row, column, words_ptr, scale_ptr, scale_step,
    WIDTH: tl.constexpr, SIZE: tl.constexpr, INT8: tl.constexpr,
):  # fmt: skip
    """Store dimensions ``column`` to ``column + SIZE`` of a row of WIDTH numbers as int8 words and
    a scale for each 64, and sums; see ``int8_rows``."""
    groups = tl.reshape(y, [SIZE // 64, 64])
    scale = tl.div_rn(tl.max(tl.abs(groups), 1), 127.0)
    inverse = tl.where(scale > 0, tl.div_rn(1.0, tl.where(scale > 0, scale, 1.0)), 0.0)
    q = _round_even(groups * inverse[:, None])
    q = tl.minimum(tl.maximum(q, -127.0), 127.0).to(tl.int32)
    bytes_of = tl.reshape(q, [SIZE // 4, 4])
    shift = (8 * tl.arange(0, 4))[None, :]
    word = column // 4 + tl.arange(0, SIZE // 4)
    place = word // 16 * 16 + word % 4 * 4 + word % 16 // 4
    at = row.to(tl.int64) * (WIDTH // 4) + place
    tl.store(words_ptr + at, tl.sum((bytes_of & 255) << shift, 1))
    group = column // 64 + tl.arange(0, SIZE // 64)
    tl.store(scale_ptr + group * scale_step + row, scale)
    if INT8 == WITH_SUMS:
        sums = tl.reshape(tl.sum(bytes_of, 1), [1, SIZE // 64, 16])
        parts = tl.reshape(parts_of_sums(sums, scale[None, :]), [SIZE // 4])
        lane = tl.arange(0, SIZE // 4) % 16
        at = WIDTH // 64 * scale_step + sums_place(word // 16, row, scale_step) + lane
        tl.store(scale_ptr + at, parts.to(tl.float32, bitcast=True), mask=lane < 2)


@triton.jit(do_not_specialize=["slots", "most", "scale_step"])
def combine_kernel(
    part_o, part_m, part_l, slots, most, arena_rows, spans, entries, sequences, short_rows,
    gate_ptr, gate_row, gate_head, factor_ptr, factor_row, factor_head, factor_step,
    y_ptr, words_ptr, scale_ptr, scale_step,
    HEADS: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr, BLOCK_RUNS: tl.constexpr,
    TREES: tl.constexpr, GATE: tl.constexpr, FACTOR: tl.constexpr, ROTATED: tl.constexpr,
    INT8: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (rows of ``short_rows``, query heads, slices of SIZE dimensions)."""
    start_dependents(PDL)
    row = early(short_rows + tl.program_id(0))
    sequence = early(sequences + row, row >= 0)
    rows, n = early(spans + 4 * sequence + 1), early(entries + sequence)
    wait_for_producers(PDL)
    if (row < 0) | (rows == 0):
        return
    head = tl.program_id(1)
    d = tl.program_id(2) * SIZE + tl.arange(0, SIZE)
    inside = d < DIM
    runs = tl.cdiv(n, run_length(n, rows, most))
    total_runs = runs
    if TREES:
        total_runs += (tl.load(arena_rows + row) >= 0).to(tl.int32)
    begin = (row.to(tl.int64) * HEADS + head) * slots
    m = float("-inf")
    total = 0.0
    acc = tl.zeros([SIZE], tl.float32)
    gate, factor = load_gates(
        row.to(tl.int64) * gate_row + head * gate_head + d,
        row.to(tl.int64) * factor_row + head * factor_head + d * factor_step,
        gate_ptr, factor_ptr, inside, GATE, FACTOR,
    )  # fmt: skip
    if total_runs <= _FEW:
        m, total, acc = _add_runs(
            0, runs, total_runs, begin, d, inside, m, total, acc, part_o, part_m, part_l, slots,
            DIM, _FEW,
        )  # fmt: skip
    else:
        for start in range(0, total_runs, BLOCK_RUNS):
            m, total, acc = _add_runs(
                start, runs, total_runs, begin, d, inside, m, total, acc, part_o, part_m, part_l,
                slots, DIM, BLOCK_RUNS,
            )  # fmt: skip
    y = acc / tl.where(total > 0, total, 1.0)
    if ROTATED:
        y = tl.reshape(rotate_rows(tl.reshape(y, [1, SIZE]), 1, SIZE), [SIZE])
    y = gated(y, gate, factor, GATE, FACTOR)
    place = (row.to(tl.int64) * HEADS + head) * DIM
    tl.store(y_ptr + place + d, y.to(y_ptr.dtype.element_ty), mask=inside)
    if INT8:
        column = head * DIM + tl.program_id(2) * SIZE
        _store_int8(y, row, column, words_ptr, scale_ptr, scale_step, HEADS * DIM, SIZE, INT8)
