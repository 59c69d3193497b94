"""The kernel that advances sequences by one certain row each: one read and write of the state."""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import fetch_ahead, guess, start_dependents, wait_for_producers

FETCHED_SEQUENCES = tl.constexpr(4)
"""Sequences whose states are fetched ahead: a large device has room for about as many programs at
once. Later programs begin when their producers have ended, and would only wait for the slot."""


@triton.jit(do_not_specialize=["stores"])
def advance_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    g_ptr,
    beta_ptr,
    state_ptr,
    out_ptr,
    spans,
    store_rows,
    store_slots,
    stores,
    q_row,
    k_row,
    v_row,
    g_row,
    beta_row,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    BV: tl.constexpr,
    STORES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (HV * DV / BV, B): a program advances BV rows of one head's state [DV, DK]."""
    start_dependents(PDL)
    span = spans + 4 * tl.program_id(1)
    head = tl.program_id(0) // (DV // BV)
    first = tl.program_id(0) * BV
    if PDL and tl.program_id(1) < FETCHED_SEQUENCES:
        lines = first * DK + tl.arange(0, BV * DK // 32) * 32
        fetch_ahead(state_ptr + guess(span + 2).to(tl.int64) * (HV * DV * DK) + lines)
    wait_for_producers(PDL)
    row = tl.load(span).to(tl.int64)
    slot = tl.load(span + 2).to(tl.int64)
    if (tl.load(span + 1) != 1) | (tl.load(span + 3) != 0):
        return
    r = first % DV + tl.arange(0, BV)
    c = tl.arange(0, DK)
    place = (head * DV + r)[:, None] * DK + c[None, :]
    at = state_ptr + slot * (HV * DV * DK) + place
    state = tl.load(at)
    key_head = head % HK
    k = tl.load(k_ptr + row * k_row + key_head * DK + c).to(tl.float32)
    q = tl.load(q_ptr + row * q_row + key_head * DK + c).to(tl.float32)
    v = tl.load(v_ptr + row * v_row + head * DV + r).to(tl.float32)
    decay = tl.exp(tl.load(g_ptr + row * g_row + head))
    beta = tl.load(beta_ptr + row * beta_row + head)
    # Both reductions read the old state, so that neither waits for the other.
    d = beta * (v - decay * tl.sum(state * k[None, :], 1))
    out = decay * tl.sum(state * q[None, :], 1) + d * tl.sum(k * q, 0)
    state = decay * state + d[:, None] * k[None, :]
    tl.store(at, state)
    tl.store(out_ptr + (row * HV + head) * DV + r, out)
    if STORES:
        for index in range(stores):
            if tl.load(store_rows + index) == row:
                target = tl.load(store_slots + index).to(tl.int64)
                tl.store(state_ptr + target * (HV * DV * DK) + place, state)
