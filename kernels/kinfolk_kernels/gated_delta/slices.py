"""Certain slices in blocks: what does not need the state for all blocks at once, then a scan.

The block size is that of the step's index. Smaller blocks than the usual 64 rows: products in three
passes of tf32 need twice the registers, and a scan of twice the steps costs little beside a spill.
Matrices between rows are transposed, earlier rows down and later ones to the right, so that a tile
of the state [values, keys] is the left operand of every product.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.gated_delta.closed_form import (
    KEYS,
    decays,
    inverse,
    load_slice,
    load_state,
    moved,
    product,
    store_state,
)


@triton.jit
def prepare_kernel(
    q_ptr,
    k_ptr,
    g_ptr,
    beta_ptr,
    solved_ptr,
    attend_ptr,
    total_ptr,
    blocks,
    q_row,
    k_row,
    g_row,
    beta_row,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    T: tl.constexpr,
    LEVELS: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (HV, N): of a block and head the solved system and the decayed q k, both [T, T] with
    earlier rows down, and the sums of decays float64 [T]."""
    start_dependents(PDL)
    SLICES: tl.constexpr = DK // KEYS
    head = tl.program_id(0)
    wait_for_producers(PDL)
    first = tl.load(blocks + 2 * tl.program_id(1)).to(tl.int64)
    count = tl.load(blocks + 2 * tl.program_id(1) + 1)
    t = tl.arange(0, T)
    inside = t < count
    g = tl.load(g_ptr + (first + t) * g_row + head, mask=inside, other=0.0)
    beta = tl.load(beta_ptr + (first + t) * beta_row + head, mask=inside, other=0.0)
    total = tl.cumsum(g.to(tl.float64), 0)
    decay = decays(total[None, :], total[:, None], t[:, None] <= t[None, :])
    k_ptr += first * k_row + head % HK * DK
    q_ptr += first * q_row + head % HK * DK
    system = tl.zeros([T, T], tl.float32)
    attend = tl.zeros([T, T], tl.float32)
    for i in tl.static_range(SLICES):
        k = load_slice(k_ptr, t, k_row, inside, i)
        q = load_slice(q_ptr, t, q_row, inside, i)
        system += product(k, tl.trans(k), PRECISION)
        attend += product(k, tl.trans(q), PRECISION)
    place = (tl.program_id(1) * HV + head).to(tl.int64)
    square = place * (T * T) + t[:, None] * T + t[None, :]
    tl.store(attend_ptr + square, decay * attend)
    tl.store(total_ptr + place * T + t, total)
    system = tl.where(t[:, None] < t[None, :], beta[None, :] * decay * system, 0.0)
    tl.store(solved_ptr + square, inverse(system, T, LEVELS, PRECISION))


@triton.jit(do_not_specialize=["stores"])
def scan_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    beta_ptr,
    state_ptr,
    out_ptr,
    solved_ptr,
    attend_ptr,
    total_ptr,
    slices,
    store_rows,
    store_slots,
    stores,
    q_row,
    k_row,
    v_row,
    beta_row,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    BV: tl.constexpr,
    T: tl.constexpr,
    STORES: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (HV * DV / BV, S): a program takes BV rows of one head's state through a slice."""
    start_dependents(PDL)
    SLICES: tl.constexpr = DK // KEYS
    wait_for_producers(PDL)
    entry = slices + 4 * tl.program_id(1)
    first = tl.load(entry).to(tl.int64)
    count = tl.load(entry + 1)
    slot = tl.load(entry + 2).to(tl.int64)
    block = tl.load(entry + 3).to(tl.int64)
    head = tl.program_id(0) // (DV // BV)
    r = (tl.program_id(0) % (DV // BV)) * BV + tl.arange(0, BV)
    t = tl.arange(0, T)
    k_ptr += head % HK * DK
    q_ptr += head % HK * DK
    state = load_state(state_ptr + (slot * HV + head) * (DV * DK), r, SLICES)
    for start in tl.range(0, count, T, num_stages=STAGES):
        inside = start + t < count
        row = first + start + t
        place = (block + start // T) * HV + head
        square = place * (T * T) + t[:, None] * T + t[None, :]
        total = tl.load(total_ptr + place * T + t)
        end = tl.load(total_ptr + place * T + T - 1)
        fall = tl.exp(total.to(tl.float32))
        beta = tl.load(beta_ptr + row * beta_row + head, mask=inside, other=0.0)
        v_at = v_ptr + row[None, :] * v_row + head * DV + r[:, None]
        right = tl.load(v_at, mask=inside[None, :], other=0.0).to(tl.float32)
        out = tl.zeros([BV, T], tl.float32)
        for i in tl.static_range(SLICES):
            k = load_slice(k_ptr, row, k_row, inside, i)
            q = load_slice(q_ptr, row, q_row, inside, i)
            right -= fall[None, :] * product(state[i], tl.trans(k), PRECISION)
            out += fall[None, :] * product(state[i], tl.trans(q), PRECISION)
        d = product(beta[None, :] * right, tl.load(solved_ptr + square), PRECISION)
        out += product(d, tl.load(attend_ptr + square), PRECISION)
        o_at = out_ptr + (row[None, :] * HV + head) * DV + r[:, None]
        tl.store(o_at, out, mask=inside[None, :])
        if STORES:
            for index in range(stores):
                last = tl.load(store_rows + index) - first - start
                if (last >= 0) & (last < T) & (last < count - start):
                    stop = tl.load(total_ptr + place * T + last)
                    gap = tl.where(t <= last, (stop - total).to(tl.float32), float("-inf"))
                    kept = d * tl.exp(gap)[None, :]
                    before = tl.exp(stop.to(tl.float32))
                    left = moved(state, before, kept, k_ptr, row, k_row, inside, SLICES, PRECISION)
                    target = tl.load(store_slots + index).to(tl.int64)
                    store_state(state_ptr + (target * HV + head) * (DV * DK), r, left, SLICES)
        rest = tl.exp((end - total).to(tl.float32))
        decay = tl.exp(end.to(tl.float32))
        d = d * rest[None, :]
        state = moved(state, decay, d, k_ptr, row, k_row, inside, SLICES, PRECISION)
    store_state(state_ptr + (slot * HV + head) * (DV * DK), r, state, SLICES)
