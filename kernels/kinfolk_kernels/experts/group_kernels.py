"""Expert kernels for many rows: the rows of an expert are multiplied together on tensor cores.

Pairs (row, expert) are sorted by expert (``sort_kernels``); a block is up to BM pairs of one
expert. Weights are the left operand and are dequantised in the loop. A pair is a column of the
right operand, so its result does not depend on the other pairs of its block.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.activations import activation
from kinfolk_kernels.dependent import early, start_dependents, wait_for_producers
from kinfolk_kernels.experts.far_records import moved, record_of
from kinfolk_kernels.experts.weight_tiles import weight_tile


@triton.jit
def block_of(starts_ptr, ends_ptr, E: tl.constexpr, SIZE: tl.constexpr, BM: tl.constexpr):
    """The block of program_id(1): its expert (E beyond the last), first pair, end of pairs."""
    block = tl.program_id(1)
    e = tl.arange(0, SIZE)
    ends = tl.load(ends_ptr + e, mask=e < E, other=0x7FFFFFFF)
    passed = ends <= block
    expert = tl.sum(passed.to(tl.int32), 0)
    earlier = tl.max(tl.where(passed, ends, 0), 0)
    known = tl.minimum(expert, E - 1)
    first = tl.load(starts_ptr + known) + (block - earlier) * BM
    return expert, first, tl.load(starts_ptr + known + 1)


@triton.jit
def _planes(
    q_ptr, high_ptr, scales_ptr, supers_ptr, first_ptr, far_ptr, bay,
    near, record, q_step, high_step, scales_step, supers_step, FAR: tl.constexpr,
):  # fmt: skip
    """The addresses of the planes of a bay; ``bays`` describes what leads to far ones."""
    if FAR:
        at = record_of(bay, first_ptr, far_ptr, near, record)
        planes = (moved(q_ptr, at), moved(high_ptr, at),
                  moved(scales_ptr, at), moved(supers_ptr, at))  # fmt: skip
    else:
        planes = (q_ptr + bay * q_step, high_ptr + bay * high_step,
                  scales_ptr + bay * scales_step, supers_ptr + bay * supers_step)  # fmt: skip
    return planes


@triton.jit
def _rows_tile(x_ptr, row, there, group, K: tl.constexpr):
    """Columns 0-31 and 32-63 of a group of the rows ``row`` int64 [BM]: two tiles [32, BM]."""
    column = group * 64 + tl.arange(0, 32)[:, None]
    at = x_ptr + row[None, :] * K + column
    first = tl.load(at, mask=there[None, :] & (column < K), other=0.0)
    return first, tl.load(at + 32, mask=there[None, :] & (column + 32 < K), other=0.0)


@triton.jit
def _add(acc, w, x):
    return tl.dot(w, x, acc=acc, input_precision="ieee", out_dtype=tl.float32)


@triton.jit
def narrow(y, out_ptr):
    """Convert to the dtype of the output; float16 saturates at its largest number."""
    if out_ptr.dtype.element_ty == tl.float16:
        y = tl.minimum(tl.maximum(y, -65504.0), 65504.0)
    return y.to(out_ptr.dtype.element_ty)


@triton.jit(do_not_specialize=["near", "record"])
def group_gate_up_kernel(
    x_ptr, order_ptr, starts_ptr, ends_ptr, bay_ptr,
    gate_q, gate_high, gate_scales, gate_supers,
    up_q, up_high, up_scales, up_supers,
    far_ptr,
    inner_ptr,
    near,
    record, q_step, high_step, scales_step, supers_step,
    K: tl.constexpr, F: tl.constexpr, TOP_K: tl.constexpr, E: tl.constexpr,
    FORMAT: tl.constexpr, ACTIVATION: tl.constexpr,
    FAR: tl.constexpr, GAPS: tl.constexpr,
    SIZE: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (F / BN, blocks): inner [P, F] = activation(gate x) * up x, pairs in sorted order.
    Nothing is stored for absent experts."""
    expert, first, stop = block_of(starts_ptr, ends_ptr, E, SIZE, BM)
    there_is = expert < E
    if GAPS:
        bay = tl.load(bay_ptr + expert, mask=there_is, other=-1).to(tl.int64)
        there_is = bay >= 0
    if there_is:
        place = first + tl.arange(0, BM)
        there = place < stop
        pair = tl.load(order_ptr + place, mask=there, other=0)
        row = (pair // TOP_K).to(tl.int64)
        n = tl.program_id(0) * BN + tl.arange(0, BN)
        mine = tl.minimum(n, F - 1)
        if not GAPS:
            bay = tl.load(bay_ptr + expert).to(tl.int64)
        gate_planes = _planes(
            gate_q, gate_high, gate_scales, gate_supers, gate_q, far_ptr, bay,
            near, record, q_step, high_step, scales_step, supers_step, FAR,
        )  # fmt: skip
        up_planes = _planes(
            up_q, up_high, up_scales, up_supers, gate_q, far_ptr, bay,
            near, record, q_step, high_step, scales_step, supers_step, FAR,
        )  # fmt: skip
        gate = tl.zeros([BN, BM], tl.float32)
        up = tl.zeros([BN, BM], tl.float32)
        for group in tl.range(0, (K + 63) // 64, num_stages=STAGES):
            x0, x1 = _rows_tile(x_ptr, row, there, group, K)
            w0, w1 = weight_tile(
                gate_planes[0], gate_planes[1], gate_planes[2], gate_planes[3],
                mine, group, K, FORMAT,
            )  # fmt: skip
            gate = _add(gate, w0, x0)
            gate = _add(gate, w1, x1)
            w0, w1 = weight_tile(
                up_planes[0], up_planes[1], up_planes[2], up_planes[3], mine, group, K, FORMAT
            )
            up = _add(up, w0, x0)
            up = _add(up, w1, x1)
        inner = narrow(activation(gate, ACTIVATION) * up, inner_ptr)
        at = inner_ptr + place.to(tl.int64)[None, :] * F + n[:, None]
        tl.store(at, inner, mask=there[None, :] & (n < F)[:, None])


@triton.jit(do_not_specialize=["near", "record"])
def group_down_kernel(
    inner_ptr, order_ptr, starts_ptr, ends_ptr, bay_ptr,
    down_q, down_high, down_scales, down_supers,
    far_ptr,
    pairs_ptr,
    near,
    record, q_step, high_step, scales_step, supers_step,
    F: tl.constexpr, W: tl.constexpr, E: tl.constexpr, FORMAT: tl.constexpr,
    FAR: tl.constexpr, GAPS: tl.constexpr,
    SIZE: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Grid (W / BN, blocks): pairs [P, W] = down inner, in the order before sorting. Nothing
    is stored for absent experts."""
    expert, first, stop = block_of(starts_ptr, ends_ptr, E, SIZE, BM)
    there_is = expert < E
    if GAPS:
        bay = tl.load(bay_ptr + expert, mask=there_is, other=-1).to(tl.int64)
        there_is = bay >= 0
    if there_is:
        place = first + tl.arange(0, BM)
        there = place < stop
        pair = tl.load(order_ptr + place, mask=there, other=0).to(tl.int64)
        n = tl.program_id(0) * BN + tl.arange(0, BN)
        mine = tl.minimum(n, W - 1)
        if not GAPS:
            bay = tl.load(bay_ptr + expert).to(tl.int64)
        planes = _planes(
            down_q, down_high, down_scales, down_supers, down_q, far_ptr, bay,
            near, record, q_step, high_step, scales_step, supers_step, FAR,
        )  # fmt: skip
        acc = tl.zeros([BN, BM], tl.float32)
        for group in tl.range(0, (F + 63) // 64, num_stages=STAGES):
            x0, x1 = _rows_tile(inner_ptr, place.to(tl.int64), there, group, F)
            w0, w1 = weight_tile(planes[0], planes[1], planes[2], planes[3], mine, group, F, FORMAT)
            acc = _add(acc, w0, x0)
            acc = _add(acc, w1, x1)
        at = pairs_ptr + pair[None, :] * W + n[:, None]
        tl.store(at, narrow(acc, pairs_ptr), mask=there[None, :] & (n < W)[:, None])


@triton.jit
def sum_kernel(
    pairs_ptr, ids_ptr, weights_ptr, bay_ptr, rows_ptr, y_ptr,
    W: tl.constexpr, TOP_K: tl.constexpr, GAPS: tl.constexpr, PADDED: tl.constexpr,
    COLUMNS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (rows, W / COLUMNS): y float32 [rows, W], the weighted sum of a row's pairs, added in
    the order of its experts, without absent ones. GAPS and PADDED: see ``bays``.

    The products, which do not start early, have waited for all but their results: only those are
    read after the wait. Loads of all experts are under way before one is used.
    """
    start_dependents(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real = row >= 0
    if PADDED:
        real = row < early(rows_ptr)
    experts, weights, stops, pairs = (), (), (), ()
    for k in tl.static_range(TOP_K):
        weights += (early(weights_ptr + row * TOP_K + k, real),)
        if GAPS:
            experts += (early(ids_ptr + row * TOP_K + k, real),)
    for k in tl.static_range(TOP_K):
        if GAPS:
            there = real & (early(bay_ptr + experts[k], real) >= 0)
            stops += (tl.where(there, W, 0),)
        else:
            stops += (W,)
    wait_for_producers(PDL)
    for k in tl.static_range(TOP_K):
        at = pairs_ptr + (row * TOP_K + k) * W + column
        pairs += (tl.load(at, mask=column < stops[k], other=0.0),)
    total = tl.zeros([COLUMNS], tl.float32)
    for k in tl.static_range(TOP_K):
        total += weights[k] * pairs[k].to(tl.float32)
    tl.store(y_ptr + row * W + column, total, mask=column < W)
