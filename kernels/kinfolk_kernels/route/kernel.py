"""The kernels that choose the experts of a row."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.activations import sigmoid
from kinfolk_kernels.dependent import fetch_ahead, start_dependents, wait_for_producers

BELOW_ALL_KEYS = tl.constexpr(-(2**63))
"""Less than the key of every expert."""


@triton.jit
def _scores(logits, real, SOFTMAX: tl.constexpr):
    """Scores of logits [rows, SIZE], with the largest logit and the sum of exponentials
    [rows, 1]."""
    if SOFTMAX:
        most = tl.max(tl.where(real, logits, float("-inf")), 1)[:, None]
        powers = tl.where(real, tl.exp(logits - most), 0.0)
        total = tl.sum(powers, 1)[:, None]
        return powers / total, most, total
    none = tl.zeros([logits.shape[0], 1], tl.float32)
    return sigmoid(logits), none, none


@triton.jit
def _keys(rank, e, SIZE: tl.constexpr):
    """int64 keys that order experts by rank, the lowest ``e`` first of equals, and NaN last."""
    rank = tl.where(rank == rank, rank, float("-inf"))
    bits = rank.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (SIZE - 1 - e).to(tl.int64)


@triton.jit
def _logits(at, part_step, mask, PARTS: tl.constexpr):
    """Logits at addresses: their PARTS parts, added up in order."""
    total = tl.load(at, mask=mask, other=0.0, cache_modifier=".cg")
    for part in tl.static_range(1, PARTS):
        total += tl.load(at + part * part_step, mask=mask, other=0.0, cache_modifier=".cg")
    return total


@triton.jit
def choose_rows(
    logits_ptr, bias_ptr, expert_scale_ptr, ids_ptr, weights_ptr, row, stop,
    logits_row, part_step, scale,
    EXPERTS: tl.constexpr, SIZE: tl.constexpr, TOP_K: tl.constexpr, PLACES: tl.constexpr,
    SOFTMAX: tl.constexpr, BIASED: tl.constexpr, SCALED: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Store ids and weights of the rows ``row`` int64 [rows] before ``stop``, whose logits have
    PARTS parts; every id is valid, whatever the logits are."""
    e = tl.arange(0, SIZE)[None, :]
    there = (row < stop)[:, None]
    real = there & (e < EXPERTS)
    base = logits_ptr + row[:, None] * logits_row
    logits = _logits(base + e, part_step, real, PARTS)
    scores, most, total = _scores(logits, real, SOFTMAX)
    if BIASED:
        scores = scores + tl.load(bias_ptr + e, mask=e < EXPERTS, other=0.0)
    keys = tl.where(real, _keys(scores, e, SIZE), BELOW_ALL_KEYS)
    place = tl.arange(0, PLACES)[None, :]
    ids = tl.zeros([row.shape[0], PLACES], tl.int32)
    for k in tl.static_range(TOP_K):
        best = tl.max(keys, 1)[:, None]
        chosen = SIZE - 1 - (best & 0xFFFFFFFF).to(tl.int32)
        keys = tl.where(e == chosen, BELOW_ALL_KEYS, keys)
        ids = tl.where(place == k, chosen, ids)
    mine = there & (place < TOP_K)
    ids = tl.where(mine, ids, 0)
    logits = _logits(base + ids, part_step, mine, PARTS)
    if SOFTMAX:
        weights = tl.exp(logits - most) / total
    else:
        weights = sigmoid(logits)
    weights = tl.where(mine, weights, 0.0)
    weights = weights / tl.sum(weights, 1)[:, None] * scale
    if SCALED:
        weights = weights * tl.load(expert_scale_ptr + ids)
    out = row[:, None] * TOP_K + place
    tl.store(ids_ptr + out, ids.to(tl.int64), mask=mine)
    tl.store(weights_ptr + out, weights, mask=mine)


@triton.jit(do_not_specialize=["rows", "scale"])
def choose_kernel(
    logits_ptr, bias_ptr, expert_scale_ptr,
    ids_ptr, weights_ptr,
    rows,
    logits_row, part_step,
    scale,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr,
    SOFTMAX: tl.constexpr, BIASED: tl.constexpr, SCALED: tl.constexpr,
    SIZE: tl.constexpr, PLACES: tl.constexpr, PARTS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid (rows,): chooses the experts of a row by its logits."""
    start_dependents(PDL)
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    wait_for_producers(PDL)
    choose_rows(
        logits_ptr, bias_ptr, expert_scale_ptr, ids_ptr, weights_ptr, row, rows,
        logits_row, part_step, scale,
        EXPERTS, SIZE, TOP_K, PLACES, SOFTMAX, BIASED, SCALED, PARTS,
    )  # fmt: skip


@triton.jit(do_not_specialize=["rows", "scale"])
def route_kernel(
    x_ptr, weight_ptr, bias_ptr, expert_scale_ptr,
    logits_ptr, done_ptr, ids_ptr, weights_ptr,
    rows,
    x_row,
    scale,
    WIDTH: tl.constexpr, EXPERTS: tl.constexpr, TOP_K: tl.constexpr,
    SOFTMAX: tl.constexpr, BIASED: tl.constexpr, SCALED: tl.constexpr,
    COLUMNS: tl.constexpr, SIZE: tl.constexpr, PLACES: tl.constexpr,
    ROWS: tl.constexpr, SHARE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid (EXPERTS / SHARE, rows / ROWS): a program computes the logits of SHARE experts for ROWS
    rows; the last program of these rows to end chooses their experts. ``done`` has a counter for
    each ROWS rows, zero before and after."""
    start_dependents(PDL)
    e = tl.program_id(0) * SHARE + tl.arange(0, SHARE)
    column = tl.arange(0, COLUMNS)
    inside = column < WIDTH
    w = tl.load(
        weight_ptr + e[:, None] * WIDTH + column[None, :],
        mask=(e < EXPERTS)[:, None] & inside[None, :],
        other=0.0,
    )
    wait_for_producers(PDL)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    x = tl.load(
        x_ptr + row[:, None] * x_row + column[None, :],
        mask=(row < rows)[:, None] & inside[None, :],
        other=0.0,
    ).to(tl.float32)
    logits = tl.sum(x[:, None, :] * w[None, :, :], 2)
    to = logits_ptr + row[:, None] * EXPERTS + e[None, :]
    tl.store(to, logits, mask=(row < rows)[:, None] & (e < EXPERTS)[None, :])
    tl.debug_barrier()
    done = done_ptr + tl.program_id(1)
    if tl.atomic_add(done, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        tl.debug_barrier()
        tl.store(done, 0)
        choose_rows(
            logits_ptr, bias_ptr, expert_scale_ptr, ids_ptr, weights_ptr,
            row.to(tl.int64), rows, EXPERTS, 0, scale,
            EXPERTS, SIZE, TOP_K, PLACES, SOFTMAX, BIASED, SCALED, 1,
        )  # fmt: skip


@triton.jit
def _leading(w):
    """The part of float32 numbers that tf32 products keep: sign, exponent, ten bits."""
    return (w.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def _product(x, w):
    """x w^T float32, of numbers that tf32 products keep in one part or two."""
    first = _leading(w)
    rest = tl.trans(w - first)
    first = tl.trans(first)
    if x.dtype == tl.float32:
        x_first = _leading(x)
        x_rest = x - x_first
        total = tl.dot(x_rest, rest, input_precision="tf32")
        total = tl.dot(x_rest, first, total, input_precision="tf32")
    else:
        x_first = x.to(tl.float32)
        total = tl.zeros([x.shape[0], w.shape[0]], tl.float32)
    total = tl.dot(x_first, rest, total, input_precision="tf32")
    return tl.dot(x_first, first, total, input_precision="tf32")


@triton.jit(do_not_specialize=["rows", "part_step"])
def logits_kernel(
    x_ptr, weight_ptr,
    logits_ptr,
    rows, part_step,
    x_row,
    WIDTH: tl.constexpr, EXPERTS: tl.constexpr,
    BM: tl.constexpr, BE: tl.constexpr, BK: tl.constexpr, STEPS: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (rows / BM, EXPERTS / BE, parts): a part of the logits float32 [parts, rows, EXPERTS],
    the product of STEPS times BK columns.

    Tensor cores read ten bits of the mantissa. That holds x of 16 bits exactly; a weight, and x in
    float32, is split into two parts, which loses 2^-21 of it. Tensor cores truncate sums towards
    zero instead of rounding, so only BK columns are added there and the rest in float32.
    """
    start_dependents(PDL)
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    e = tl.program_id(1) * BE + tl.arange(0, BE)
    x_at = x_ptr + row.to(tl.int64)[:, None] * x_row
    w_at = weight_ptr + tl.minimum(e, EXPERTS - 1)[:, None] * WIDTH
    first = tl.program_id(2) * (BK * STEPS)
    if PDL:
        # Lines of 128 bytes, asked for while the launch before still runs.
        line = tl.minimum(first + tl.arange(0, BK * STEPS // 32) * 32, WIDTH - 1)
        fetch_ahead(w_at + line[None, :])
    wait_for_producers(PDL)
    acc = tl.zeros([BM, BE], tl.float32)
    for step in tl.range(0, STEPS, num_stages=STAGES):
        column = first + step * BK + tl.arange(0, BK)[None, :]
        x = tl.load(x_at + column, mask=(row < rows)[:, None] & (column < WIDTH), other=0.0)
        w = tl.load(w_at + column, mask=(e < EXPERTS)[:, None] & (column < WIDTH), other=0.0)
        acc += _product(x, w)
    to = logits_ptr + tl.program_id(2).to(tl.int64) * part_step
    to += row.to(tl.int64)[:, None] * EXPERTS + e[None, :]
    tl.store(to, acc, mask=(row < rows)[:, None] & (e < EXPERTS)[None, :])
