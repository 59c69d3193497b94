"""The kernel of drafted rows: outputs and trace from the committed state, which is not changed.

A segment of few rows is computed row by row (``few``), one of more in closed form, in each program
for itself, or, of many rows, from what ``prepare_drafts`` has computed. What counts is the
segment's own number of rows, so its company changes no bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import early, start_dependents, wait_for_producers
from kinfolk_kernels.gated_delta.closed_form import (
    SLICE_KEYS,
    decays,
    inverse,
    load_slice,
    load_state,
    product,
)
from kinfolk_kernels.gated_delta.few import FEW_ROWS, FEW_VALUES, few_rows
from kinfolk_kernels.gated_delta.lanes import fetch_numbers
from kinfolk_kernels.gated_delta.pairs import pair_of_rows
from kinfolk_kernels.gated_delta.paths import decay_of, on_path
from kinfolk_kernels.gated_delta.prepare_drafts import (
    DRAFT_FACTORS,
    MIDDLE_ROWS,
    PATH_ROWS,
    UNPREPARED_ROWS,
    prepared_at,
)
from kinfolk_kernels.gated_delta.systems import multiply_state

UNPREPARED_LEVELS = tl.constexpr(4)
"""Of which power of two ``UNPREPARED_ROWS`` is."""


@triton.jit
def _block(
    q_ptr,
    k_ptr,
    v_ptr,
    g_ptr,
    beta_ptr,
    state_ptr,
    out_ptr,
    trace_k,
    trace_d,
    trace_total,
    path_ptr,
    count,
    q_row,
    k_row,
    v_row,
    g_row,
    beta_row,
    tile,
    stored_keys,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    BV: tl.constexpr,
    T: tl.constexpr,
    LEVELS: tl.constexpr,
):
    """The same as ``few_rows``, for at most T rows in closed form."""
    SLICES: tl.constexpr = DK // SLICE_KEYS
    r = tile * BV + tl.arange(0, BV)
    state = load_state(state_ptr, r, SLICES)
    t = tl.arange(0, T)
    inside = t < count
    path = tl.load(path_ptr + t, mask=inside, other=0)
    total = decay_of(g_ptr, path, t, g_row, count)
    beta = tl.load(beta_ptr + t * beta_row, mask=inside, other=0.0)
    beta = beta[:, None]
    fall = tl.exp(total.to(tl.float32))[:, None]
    v_at = v_ptr + t.to(tl.int64)[:, None] * v_row + r[None, :]
    right = tl.load(v_at, mask=inside[:, None], other=0.0).to(tl.float32)
    out = tl.zeros([T, BV], tl.float32)
    system = tl.zeros([T, T], tl.float32)
    attend = tl.zeros([T, T], tl.float32)
    for i in tl.static_range(SLICES):
        k = load_slice(k_ptr, t, k_row, inside, i)
        q = load_slice(q_ptr, t, q_row, inside, i)
        right -= fall * product(k, tl.trans(state[i]))
        out += fall * product(q, tl.trans(state[i]))
        system += product(k, tl.trans(k))
        attend += product(q, tl.trans(k))
    decay = decays(total[:, None], total[None, :], on_path(path, t))
    system = tl.where(t[:, None] > t[None, :], beta * decay * system, 0.0)
    d = product(inverse(system, T, LEVELS), beta * right)
    out += product(decay * attend, d)
    at = t[:, None] * (HV * DV) + r[None, :]
    tl.store(out_ptr + at, out, mask=inside[:, None])
    tl.store(trace_d + at, d, mask=inside[:, None])
    # All programs of a head store equal sums.
    tl.store(trace_total + t * HV, total, mask=inside)
    if stored_keys > 0:
        k_at = trace_k + t[:, None] * (HK * DK) + tl.arange(0, SLICE_KEYS)[None, :]
        for i in tl.static_range(SLICES):
            k = load_slice(k_ptr, t, k_row, inside, i)
            tl.store(k_at + i * SLICE_KEYS, k, mask=inside[:, None])


@triton.jit
def _prepared(
    v_ptr, state_ptr, out_ptr, trace_d, pairs_at, system_at, factors, count, v_row, tile,
    HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The same for at most C rows that ``prepare_drafts`` has prepared."""
    r = tile * BV + tl.arange(0, BV)
    t = tl.arange(0, C)
    inside = t < count
    state = tl.load(state_ptr + r[:, None] * DK + tl.arange(0, DK)[None, :])
    v_at = v_ptr + t.to(tl.int64)[:, None] * v_row + r[None, :]
    v = tl.load(v_at, mask=inside[:, None], other=0.0)
    high, low, unscale = pair_of_rows(state, True)
    x, out, _, _ = multiply_state(high, low, unscale, v, pairs_at, factors, BV, DK, C, True)
    # No pairs here: they would share a scale, and a later row would change bits of earlier ones.
    system_at += t[:, None] * C + t[None, :]
    d = product(x, tl.trans(tl.load(system_at)))
    out += product(x, tl.trans(tl.load(system_at + C * C)))
    at = t[None, :] * (HV * DV) + r[:, None]
    tl.store(out_ptr + at, out, mask=inside[None, :])
    tl.store(trace_d + at, d, mask=inside[None, :])


@triton.jit
def drafted_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    g_ptr,
    beta_ptr,
    state_ptr,
    out_ptr,
    trace_k,
    trace_d,
    trace_total,
    spans,
    path_ptr,
    pairs_ptr,
    systems_ptr,
    factors_ptr,
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
    MOST: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (HV * DV / BV, B): a program has BV rows of one head's state, for the rows of a
    sequence. ``MOST``: the bound of rows of all of them, ``FEW_ROWS``, ``UNPREPARED_ROWS``,
    ``MIDDLE_ROWS`` or ``PATH_ROWS``."""
    start_dependents(PDL)
    span = spans + 4 * tl.program_id(1)
    first = early(span).to(tl.int64)
    count = early(span + 1)
    slot = early(span + 2).to(tl.int64)
    drafted = early(span + 3)
    head = tl.program_id(0) // (DV // BV)
    tile = tl.program_id(0) % (DV // BV)
    state_ptr += (slot * HV + head) * (DV * DK)
    if PDL:
        fetch_numbers(state_ptr + tile * (BV * DK), BV * DK)
    wait_for_producers(PDL)
    if (count == 0) | (drafted == 0):
        return
    q_ptr += first * q_row + head % HK * DK
    k_ptr += first * k_row + head % HK * DK
    v_ptr += first * v_row + head * DV
    g_ptr += first * g_row + head
    beta_ptr += first * beta_row + head
    out_ptr += (first * HV + head) * DV
    trace_k += (first * HK + head) * DK
    trace_d += (first * HV + head) * DV
    trace_total += first * HV + head
    path_ptr += first
    stored_keys = tl.where((tile == 0) & (head < HK), count, 0)
    if MOST == FEW_ROWS or count <= FEW_ROWS:
        for part in range(BV // FEW_VALUES):
            few_rows(
                q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, state_ptr, out_ptr, trace_k, trace_d,
                trace_total, path_ptr, count, q_row, k_row, v_row, g_row, beta_row,
                tile * (BV // FEW_VALUES) + part, stored_keys,
                HK, HV, DK, DV, FEW_VALUES, FEW_ROWS,
            )  # fmt: skip
    elif MOST == UNPREPARED_ROWS or count <= UNPREPARED_ROWS:
        _block(
            q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, state_ptr, out_ptr, trace_k, trace_d,
            trace_total, path_ptr, count, q_row, k_row, v_row, g_row, beta_row, tile, stored_keys,
            HK, HV, DK, DV, BV, UNPREPARED_ROWS, UNPREPARED_LEVELS,
        )  # fmt: skip
    else:
        place = prepared_at(first)
        pairs_ptr += (place * HK + head % HK) * (4 * PATH_ROWS * DK)
        systems_ptr += (place * HV + head) * (2 * PATH_ROWS * PATH_ROWS)
        factors_ptr += (place * HV + head) * (DRAFT_FACTORS * PATH_ROWS)
        if MOST == MIDDLE_ROWS or count <= MIDDLE_ROWS:
            _prepared(
                v_ptr, state_ptr, out_ptr, trace_d, pairs_ptr, systems_ptr, factors_ptr, count,
                v_row, tile, HV, DK, DV, BV, MIDDLE_ROWS,
            )  # fmt: skip
        else:
            _prepared(
                v_ptr, state_ptr, out_ptr, trace_d, pairs_ptr, systems_ptr, factors_ptr, count,
                v_row, tile, HV, DK, DV, BV, PATH_ROWS,
            )  # fmt: skip
