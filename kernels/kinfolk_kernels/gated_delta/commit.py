"""The kernel that commits kept rows: one update of the state in place, of their number as rank."""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.commit_layers import of_layer
from kinfolk_kernels.dependent import guess, start_dependents, wait_for_producers
from kinfolk_kernels.gated_delta.lanes import (
    PART_KEYS,
    fetch_numbers,
    lane_keys,
    lane_values,
    load_among,
    load_parts,
    load_parts_among,
    store_parts,
)


@triton.jit
def _rows(path_ptr, start, width, T: tl.constexpr):
    """T rows of the path, as numbers: every lane needs each of them. Those beyond the ones that are
    kept are -1 or 0."""
    found = ()
    for j in tl.static_range(T):
        row = tl.load(path_ptr + start + j, mask=start + j < width, other=0)
        found = found + (row,)  # type: ignore[assignment]
    return found


@triton.jit
def _totals(trace_total, rows, left, HV: tl.constexpr, T: tl.constexpr):
    """The sums of decays of the first ``left`` of T rows."""
    found = ()
    for j in tl.static_range(T):
        total = tl.load(trace_total + rows[j] * HV, mask=j < left, other=0.0)
        found = found + (total,)  # type: ignore[assignment]
    return found


@triton.jit
def _added(
    state, rows, totals, end, left, d_at, k_at,
    D_ROW: tl.constexpr, K_ROW: tl.constexpr, T: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The state with the updates of T rows, of which the first ``left`` are kept."""
    updates, keys = (), ()
    for j in tl.static_range(T):
        d = load_among(j, left, d_at + rows[j] * D_ROW)
        keys = keys + (load_parts_among(j, left, k_at + rows[j] * K_ROW, PARTS),)  # type: ignore[assignment]
        # Selected rather than multiplied by zero, as the weight of a row that is not kept may be
        # infinite.
        weight = tl.exp((end - totals[j]).to(tl.float32))
        updates = updates + (tl.where(j < left, d * weight, 0.0),)  # type: ignore[assignment]
    for j in tl.static_range(T):
        moved = ()
        for i in tl.static_range(PARTS):
            update = tl.broadcast_to(updates[j][:, None], state[i].shape)
            moved = moved + (tl.fma(update, keys[j][i], state[i]),)  # type: ignore[assignment]
        state = moved
    return state


@triton.jit(do_not_specialize=["width"])
def commit_kernel(
    k0, d0, total0, state0,
    k1, d1, total1, state1,
    k2, d2, total2, state2,
    k3, d3, total3, state3,
    k4, d4, total4, state4,
    k5, d5, total5, state5,
    k6, d6, total6, state6,
    k7, d7, total7, state7,
    path_ptr,
    kept_ptr,
    slot_ptr,
    width,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    BV: tl.constexpr, T: tl.constexpr, SEVERAL: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid (HV * DV / BV, D, layers): a program advances BV rows of one head's state in a layer, by
    T kept rows at a time, in the order of the path. SEVERAL: whether there is more than one layer.

    A segment that keeps no rows is padding. Loads that wait for none of the others are next to each
    other: a program's time is that of three loads one after the other.
    """
    start_dependents(PDL)
    PARTS: tl.constexpr = DK // PART_KEYS
    SIZE: tl.constexpr = HV * DV * DK
    trace_k = of_layer((k0, k1, k2, k3, k4, k5, k6, k7), SEVERAL)
    trace_d = of_layer((d0, d1, d2, d3, d4, d5, d6, d7), SEVERAL)
    trace_total = of_layer(
        (total0, total1, total2, total3, total4, total5, total6, total7), SEVERAL
    )  # fmt: skip
    state_ptr = of_layer(
        (state0, state1, state2, state3, state4, state5, state6, state7), SEVERAL
    )  # fmt: skip
    first = tl.program_id(0) * BV
    head = first // DV
    path_ptr += tl.program_id(1) * width
    kept_ptr += tl.program_id(1)
    slot_ptr += tl.program_id(1)
    trace_total += head
    if PDL:
        fetch_numbers(state_ptr + guess(slot_ptr).to(tl.int64) * SIZE + first * DK, BV * DK)
    wait_for_producers(PDL)
    slot = tl.load(slot_ptr).to(tl.int64)
    rows = _rows(path_ptr, 0, width, T)
    kept = tl.load(kept_ptr).to(tl.int32)
    if kept == 0:
        return
    keys = lane_keys(BV)
    value = first + lane_values(BV)
    at = state_ptr + slot * SIZE + value[:, None] * DK + keys
    d_at, k_at = trace_d + value, trace_k + head % HK * DK + keys
    state = load_parts(at, PARTS)
    totals = _totals(trace_total, rows, kept, HV, T)
    if kept > T:
        end = tl.load(trace_total + tl.load(path_ptr + kept - 1) * HV)
    else:
        end = totals[0]
        for j in tl.static_range(1, T):
            end = tl.where(j == kept - 1, totals[j], end)
    decay = tl.exp(end.to(tl.float32))
    fallen = ()
    for i in tl.static_range(PARTS):
        fallen = fallen + (decay * state[i],)  # type: ignore[assignment]
    state = _added(fallen, rows, totals, end, kept, d_at, k_at, HV * DV, HK * DK, T, PARTS)
    for start in range(T, kept, T):
        left = kept - start
        rows = _rows(path_ptr, start, width, T)
        totals = _totals(trace_total, rows, left, HV, T)
        state = _added(state, rows, totals, end, left, d_at, k_at, HV * DV, HK * DK, T, PARTS)
    store_parts(at, state, PARTS)
