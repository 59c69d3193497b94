"""The kernel of drafted rows: outputs and trace from the committed state, which is not changed.

A segment of few rows is computed row by row (``few``), others in blocks in closed form. What counts
is the segment's own number of rows, so its company changes no bit.
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


@triton.jit
def _on_path(path, places):
    """[rows, places]: whether the row at each place of the segment is on each row's path."""
    return ((path[:, None] >> places[None, :].to(tl.int64)) & 1) != 0


@triton.jit
def _decay_of(g_ptr, path, places, g_row, count):
    """float64 [rows]: the sum of decays over the ``places`` that are on each row's path."""
    g = tl.load(g_ptr + places * g_row, mask=places < count, other=0.0).to(tl.float64)
    return tl.sum(tl.where(_on_path(path, places), g[None, :], 0.0), 1)


@triton.jit
def _gram(
    q_ptr,
    k_ptr,
    here,
    earlier,
    q_row,
    k_row,
    count,
    DK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """k k^T and q k^T of rows ``here`` with rows ``earlier``; not unrolled, to save registers."""
    met = tl.zeros([here.shape[0], earlier.shape[0]], tl.float32)
    read = met
    for i in range(DK // SLICE_KEYS):
        past = load_slice(k_ptr, earlier, k_row, earlier < count, i)
        k = load_slice(k_ptr, here, k_row, here < count, i)
        met += product(k, tl.trans(past), PRECISION)
        q = load_slice(q_ptr, here, q_row, here < count, i)
        read += product(q, tl.trans(past), PRECISION)
    return met, read


@triton.jit
def _blocks(
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
    SEVERAL: tl.constexpr,
    T: tl.constexpr,
    LEVELS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The same as ``few_rows``, in blocks of T rows: one block, or SEVERAL. Later blocks read
    earlier ones from the trace.

    The terms of a sum and their order depend on the sequence's own rows only."""
    SLICES: tl.constexpr = DK // SLICE_KEYS
    r = tile * BV + tl.arange(0, BV)
    state = load_state(state_ptr, r, SLICES)
    t = tl.arange(0, T)
    for start in range(0, count, T):
        here = start + t
        inside = here < count
        path = tl.load(path_ptr + here, mask=inside, other=0)
        total = _decay_of(g_ptr, path, here, g_row, count)
        if SEVERAL:
            for before in range(0, start, T):
                total += _decay_of(g_ptr, path, before + t, g_row, count)
        beta = tl.load(beta_ptr + here * beta_row, mask=inside, other=0.0)
        beta = beta[:, None]
        fall = tl.exp(total.to(tl.float32))[:, None]
        v_at = v_ptr + here.to(tl.int64)[:, None] * v_row + r[None, :]
        right = tl.load(v_at, mask=inside[:, None], other=0.0).to(tl.float32)
        out = tl.zeros([T, BV], tl.float32)
        system = tl.zeros([T, T], tl.float32)
        attend = tl.zeros([T, T], tl.float32)
        for i in tl.static_range(SLICES):
            k = load_slice(k_ptr, here, k_row, inside, i)
            q = load_slice(q_ptr, here, q_row, inside, i)
            right -= fall * product(k, tl.trans(state[i]), PRECISION)
            out += fall * product(q, tl.trans(state[i]), PRECISION)
            system += product(k, tl.trans(k), PRECISION)
            attend += product(q, tl.trans(k), PRECISION)
        if SEVERAL:
            for before in range(0, start, T):
                met, read = _gram(
                    q_ptr, k_ptr, here, before + t, q_row, k_row, count, DK, PRECISION
                )
                d_of = tl.load(trace_d + (before + t)[:, None] * (HV * DV) + r[None, :])
                sums = tl.load(trace_total + (before + t) * HV)
                decay = decays(total[:, None], sums[None, :], _on_path(path, before + t))
                right -= product(decay * met, d_of, PRECISION)
                out += product(decay * read, d_of, PRECISION)
        decay = decays(total[:, None], total[None, :], _on_path(path, here))
        system = tl.where(t[:, None] > t[None, :], beta * decay * system, 0.0)
        d = product(inverse(system, T, LEVELS, PRECISION), beta * right, PRECISION)
        out += product(decay * attend, d, PRECISION)
        o_at = out_ptr + here[:, None] * (HV * DV) + r[None, :]
        tl.store(o_at, out, mask=inside[:, None])
        tl.store(trace_d + here[:, None] * (HV * DV) + r[None, :], d, mask=inside[:, None])
        # All programs of a head store equal sums; each reads back its own before its next block.
        tl.store(trace_total + here * HV, total, mask=inside)
        if stored_keys > 0:
            k_at = trace_k + here[:, None] * (HK * DK) + tl.arange(0, SLICE_KEYS)[None, :]
            for i in tl.static_range(SLICES):
                k = load_slice(k_ptr, here, k_row, inside, i)
                tl.store(k_at + i * SLICE_KEYS, k, mask=inside[:, None])
        tl.debug_barrier()


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
    FEW: tl.constexpr,
    SEVERAL: tl.constexpr,
    T: tl.constexpr,
    LEVELS: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (HV * DV / BV, B): a program has BV rows of one head's state, for the rows of a
    sequence. ``FEW``: no sequence has more than ``FEW_ROWS``."""
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
    if FEW or count <= FEW_ROWS:
        for part in range(BV // FEW_VALUES):
            few_rows(
                q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, state_ptr, out_ptr, trace_k, trace_d,
                trace_total, path_ptr, count, q_row, k_row, v_row, g_row, beta_row,
                tile * (BV // FEW_VALUES) + part, stored_keys,
                HK, HV, DK, DV, FEW_VALUES, FEW_ROWS,
            )  # fmt: skip
    else:
        _blocks(
            q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, state_ptr, out_ptr, trace_k, trace_d,
            trace_total, path_ptr, count, q_row, k_row, v_row, g_row, beta_row, tile, stored_keys,
            HK, HV, DK, DV, BV, SEVERAL, T, LEVELS, PRECISION,
        )  # fmt: skip
