"""The kernels that choose the experts of a row."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.activations import sigmoid
from kinfolk_kernels.dependent import fetch_ahead, start_dependents, wait_for_producers

BELOW_ALL_KEYS = tl.constexpr(-(2**31))
"""Less than the key of every expert."""


@triton.jit
def _scores(logits, real, SOFTMAX: tl.constexpr):
    """Scores of logits [rows, SIZE]."""
    if SOFTMAX:
        most = tl.max(tl.where(real, logits, float("-inf")), 1)[:, None]
        powers = tl.where(real, tl.exp(logits - most), 0.0)
        return powers / tl.sum(powers, 1)[:, None]
    return sigmoid(logits)


@triton.jit
def _keys(rank):
    """int32 keys that order float32 numbers, NaN with the lowest."""
    rank = tl.where(rank == rank, rank, float("-inf"))
    return _ordered(rank.to(tl.int32, bitcast=True))


@triton.jit
def _ordered(bits):
    """The bits of float32 numbers as integers in their order, and back again."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _bias(bias_ptr, e, EXPERTS: tl.constexpr, BIASED: tl.constexpr):
    """The bias of experts ``e``, 0 without one."""
    if BIASED:
        return tl.load(bias_ptr + e, mask=e < EXPERTS, other=0.0)
    return tl.zeros(e.shape, tl.float32)


@triton.jit
def choose_row(
    logits, bias, expert_scale_ptr, ids_ptr, weights_ptr, row, there, scale,
    EXPERTS: tl.constexpr, TOP_K: tl.constexpr, PLACES: tl.constexpr,
    SOFTMAX: tl.constexpr, BIASED: tl.constexpr, SCALED: tl.constexpr,
):  # fmt: skip
    """Store ids and weights of the row ``row`` int64 [1] with these ``logits`` and this ``bias``
    [1, SIZE], if it is ``there`` [1]; every id is valid, whatever the logits are.

    One warp compares integers of all its lanes in one instruction: the keys, and then the ids of
    the experts that have the best one, of which the lowest is chosen. The key of an expert is its
    score again; where a bias is added for the choice, the score is looked up.
    """
    SIZE: tl.constexpr = logits.shape[1]
    e = tl.arange(0, SIZE)[None, :]
    there = there[:, None]
    real = there & (e < EXPERTS)
    scores = _scores(logits, real, SOFTMAX)
    rank = scores
    if BIASED:
        rank = scores + bias
    keys = tl.where(real, _keys(rank), BELOW_ALL_KEYS)
    own = _keys(scores)
    place = tl.arange(0, PLACES)[None, :]
    ids = tl.zeros([1, PLACES], tl.int32)
    taken = tl.zeros([1, PLACES], tl.int32)
    for k in tl.static_range(TOP_K):
        best = tl.max(keys, 1)[:, None]
        chosen = tl.min(tl.where(keys == best, e, SIZE), 1)[:, None]
        if BIASED:
            best = tl.max(tl.where(e == chosen, own, BELOW_ALL_KEYS), 1)[:, None]
        keys = tl.where(e == chosen, BELOW_ALL_KEYS, keys)
        ids = tl.where(place == k, chosen, ids)
        taken = tl.where(place == k, best, taken)
    mine = there & (place < TOP_K)
    ids = tl.where(mine, ids, 0)
    weights = _ordered(taken).to(tl.float32, bitcast=True)
    # A score is at least 0, and what is less was none.
    weights = tl.where(weights < 0, float("nan"), weights)
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
    """Grid (rows,), programs of one warp: choose the experts of a row by its logits, the sum of
    PARTS parts."""
    start_dependents(PDL)
    row = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    e = tl.arange(0, SIZE)[None, :]
    there = row < rows
    real = there[:, None] & (e < EXPERTS)
    at = logits_ptr + row[:, None] * logits_row + e
    bias = _bias(bias_ptr, e, EXPERTS, BIASED)
    wait_for_producers(PDL)
    logits = tl.load(at, mask=real, other=0.0)
    for part in tl.static_range(1, PARTS):
        logits += tl.load(at + part * part_step, mask=real, other=0.0)
    choose_row(
        logits, bias, expert_scale_ptr, ids_ptr, weights_ptr, row, there, scale,
        EXPERTS, TOP_K, PLACES, SOFTMAX, BIASED, SCALED,
    )  # fmt: skip


@triton.jit
def _line(pointer, WIDTH: tl.constexpr, LANES: tl.constexpr, TILES: tl.constexpr):
    """A line of WIDTH numbers as a tuple of TILES tiles [LANES, 4]. With four numbers in each lane,
    whatever their type, numbers need no exchange between lanes; see ``row_outputs.lanes_of``."""
    tiles = ()
    for i in tl.static_range(TILES):
        column = i * (4 * LANES) + tl.arange(0, LANES)[:, None] * 4 + tl.arange(0, 4)[None, :]
        tile = tl.load(pointer + column, mask=column < WIDTH, other=0.0)
        tiles = tiles + (tile,)  # type: ignore[assignment]
    return tiles


@triton.jit(do_not_specialize=["rows"])
def few_logits_kernel(
    x_ptr, weight_ptr,
    logits_ptr,
    rows,
    x_row,
    WIDTH: tl.constexpr, EXPERTS: tl.constexpr, LANES: tl.constexpr, TILES: tl.constexpr,
    ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (EXPERTS, rows / ROWS): a program computes the logits of an expert for ROWS rows."""
    start_dependents(PDL)
    expert = tl.program_id(0)
    first = tl.program_id(1) * ROWS
    w = _line(weight_ptr + expert * WIDTH, WIDTH, LANES, TILES)
    wait_for_producers(PDL)
    parts = ()
    for i in tl.static_range(ROWS):
        row = tl.minimum(first + i, rows - 1).to(tl.int64)
        x = _line(x_ptr + row * x_row, WIDTH, LANES, TILES)
        total = x[0].to(tl.float32) * w[0]
        for tile in tl.static_range(1, TILES):
            total += x[tile].to(tl.float32) * w[tile]
        parts = parts + (tl.sum(total, 1),)  # type: ignore[assignment]
    if ROWS == 4:
        both = tl.join(tl.join(parts[0], parts[2]), tl.join(parts[1], parts[3]))
    elif ROWS == 2:
        both = tl.join(parts[0], parts[1])
    else:
        both = parts[0][:, None]
    # One sum of all rows, as warps wait for each other in each.
    logits = tl.reshape(tl.sum(both, 0), [ROWS])
    row = first + tl.arange(0, ROWS)
    tl.store(logits_ptr + row * EXPERTS + expert, logits, mask=row < rows)


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
