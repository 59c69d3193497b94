"""The kernel that commits kept rows: one update of the state in place, of their number as rank."""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.gated_delta.closed_form import (
    SLICE_KEYS,
    load_state,
    moved,
    store_state,
)


@triton.jit(do_not_specialize=["width"])
def commit_kernel(
    trace_k,
    trace_d,
    trace_total,
    state_ptr,
    path_ptr,
    kept_ptr,
    slot_ptr,
    width,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    BV: tl.constexpr,
    T: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (HV * DV / BV, D): a program advances BV rows of one head's state, by T kept rows at a
    time.

    A segment that keeps no rows is padding.
    """
    start_dependents(PDL)
    SLICES: tl.constexpr = DK // SLICE_KEYS
    wait_for_producers(PDL)
    kept = tl.load(kept_ptr + tl.program_id(1)).to(tl.int32)
    if kept == 0:
        return
    head = tl.program_id(0) // (DV // BV)
    r = (tl.program_id(0) % (DV // BV)) * BV + tl.arange(0, BV)
    slot = tl.load(slot_ptr + tl.program_id(1)).to(tl.int64)
    path_ptr += tl.program_id(1) * width
    base = state_ptr + (slot * HV + head) * (DV * DK)
    state = load_state(base, r, SLICES)
    end = tl.load(trace_total + tl.load(path_ptr + kept - 1) * HV + head)
    decay = tl.exp(end.to(tl.float32))
    t = tl.arange(0, T)
    for start in range(0, kept, T):
        inside = start + t < kept
        row = tl.load(path_ptr + start + t, mask=inside, other=0)
        total = tl.load(trace_total + row * HV + head, mask=inside, other=0.0)
        weight = tl.exp((end - total).to(tl.float32))
        d_at = trace_d + (row * HV + head)[None, :] * DV + r[:, None]
        # Masked rather than multiplied by zero: other rows may be NaN.
        d = tl.load(d_at, mask=inside[None, :], other=0.0)
        d = tl.where(inside[None, :], d * weight[None, :], 0.0)
        factor = tl.where(start == 0, decay, 1.0)
        keys = trace_k + head % HK * DK
        state = moved(state, factor, d, keys, row, HK * DK, inside, SLICES, PRECISION)
    store_state(base, r, state, SLICES)
