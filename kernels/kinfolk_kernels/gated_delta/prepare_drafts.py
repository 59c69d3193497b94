"""The kernel that prepares drafted segments of many rows: what needs no state, once a head.

It stores their systems (see ``systems``), what ``drafted`` multiplies rows by, and what a commit
needs of keys and decays. A row has seen the rows of its path.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import early, start_dependents, wait_for_producers
from kinfolk_kernels.gated_delta.closed_form import decays
from kinfolk_kernels.gated_delta.paths import decay_of, on_path
from kinfolk_kernels.gated_delta.systems import SCALE, load_rows, make_system

UNPREPARED_ROWS = tl.constexpr(16)
"""Most rows of a segment that is not prepared."""

MIDDLE_ROWS = tl.constexpr(32)
MIDDLE_LEVELS = tl.constexpr(5)
"""Segments of up to so many rows are prepared as matrices of this size, 2^5."""

PATH_ROWS = tl.constexpr(64)
PATH_LEVELS = tl.constexpr(6)
"""The others as these, 2^6: a path has as many bits."""

DRAFT_FACTORS = tl.constexpr(2)
"""Numbers by which ``drafted`` multiplies a row of a value head: e^G for S k, and for S q. They
also unscale k and q."""


@triton.jit
def prepared_at(first):
    """Where the segment that begins with row ``first`` is prepared: no two are in one place, as
    each has more than ``UNPREPARED_ROWS``."""
    return first // (UNPREPARED_ROWS + 1)


@triton.jit
def _prepare(
    q_ptr, k_ptr, g_ptr, beta_ptr, pairs_at, system_at, factors_at, trace_k, trace_total, path_ptr,
    count, q_row, k_row, g_row, beta_row, shared,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr,
    BATCHED: tl.constexpr,
):  # fmt: skip
    """A segment of at most C rows."""
    t = tl.arange(0, C)
    inside = t < count
    path = tl.load(path_ptr + t, mask=inside, other=0)
    beta = tl.load(beta_ptr + t * beta_row, mask=inside, other=0.0)
    k = load_rows(k_ptr, t, k_row, inside, DK)
    total = decay_of(g_ptr, path, t, g_row, count)
    tl.store(trace_total + t * HV, total, mask=inside)
    if shared:
        at = trace_k + t[:, None] * (HK * DK) + tl.arange(0, DK)[None, :]
        tl.store(at, k, mask=inside[:, None])
    decay = decays(total[:, None], total[None, :], on_path(path, t))
    found, mixed, unscale_k, unscale_q = make_system(
        k, q_ptr, t, q_row, inside, beta, decay, shared, pairs_at, DK, C, LEVELS, BATCHED, True
    )
    at = system_at + t[:, None] * C + t[None, :]
    tl.store(at, found * (1 / SCALE))
    tl.store(at + C * C, mixed * unscale_q[:, None])
    fall = tl.exp(total.to(tl.float32))
    tl.store(factors_at + t, fall * unscale_k)
    tl.store(factors_at + C + t, fall * unscale_q)


@triton.jit
def prepare_drafts_kernel(
    q_ptr,
    k_ptr,
    g_ptr,
    beta_ptr,
    pairs_ptr,
    systems_ptr,
    factors_ptr,
    trace_k,
    trace_total,
    spans,
    path_ptr,
    q_row,
    k_row,
    g_row,
    beta_row,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    LARGE: tl.constexpr,
    BATCHED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (HV, B): a program prepares the rows of a sequence for one value head. The first value
    head of a key head stores K and Q. ``LARGE``: some may have more than ``MIDDLE_ROWS``."""
    start_dependents(PDL)
    span = spans + 4 * tl.program_id(1)
    first = early(span).to(tl.int64)
    count = early(span + 1)
    drafted = early(span + 3)
    head = tl.program_id(0)
    wait_for_producers(PDL)
    if (count <= UNPREPARED_ROWS) | (drafted == 0):
        return
    place = prepared_at(first)
    q_ptr += first * q_row + head % HK * DK
    k_ptr += first * k_row + head % HK * DK
    g_ptr += first * g_row + head
    beta_ptr += first * beta_row + head
    path_ptr += first
    trace_k += (first * HK + head) * DK
    trace_total += first * HV + head
    pairs_ptr += (place * HK + head % HK) * (4 * PATH_ROWS * DK)
    systems_ptr += (place * HV + head) * (2 * PATH_ROWS * PATH_ROWS)
    factors_ptr += (place * HV + head) * (DRAFT_FACTORS * PATH_ROWS)
    if LARGE and count > MIDDLE_ROWS:
        _prepare(
            q_ptr, k_ptr, g_ptr, beta_ptr, pairs_ptr, systems_ptr, factors_ptr, trace_k,
            trace_total, path_ptr, count, q_row, k_row, g_row, beta_row, head < HK,
            HK, HV, DK, PATH_ROWS, PATH_LEVELS, BATCHED,
        )  # fmt: skip
    else:
        _prepare(
            q_ptr, k_ptr, g_ptr, beta_ptr, pairs_ptr, systems_ptr, factors_ptr, trace_k,
            trace_total, path_ptr, count, q_row, k_row, g_row, beta_row, head < HK,
            HK, HV, DK, MIDDLE_ROWS, MIDDLE_LEVELS, BATCHED,
        )  # fmt: skip
