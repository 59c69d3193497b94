"""The kernel that prepares chunks of slices, all of them in parallel: what needs no state.

It stores their systems (see ``systems``), and what ``scan`` multiplies rows by. A row has seen all
rows of its chunk before it; decays are summed from the chunk's first row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.gated_delta.chunks import (
    CHUNK_LEVELS,
    CHUNK_ROWS,
    SHORT_ROWS,
    chunks_of_slices,
    rows_of_chunk,
    slice_at,
)
from kinfolk_kernels.gated_delta.pairs import halves
from kinfolk_kernels.gated_delta.systems import SCALE, load_rows, make_system, store_pair

ROW_FACTORS = tl.constexpr(5)
"""Numbers by which ``scan`` multiplies a row of a value head: e^G for S k; e^G for S q; 1 for M x;
e^{end - G} for the update; e^{end}, the same for all rows of a chunk. They also unscale k, q and
T."""


@triton.jit(do_not_specialize=["entries", "begin", "end"])
def prepare_kernel(
    q_ptr,
    k_ptr,
    g_ptr,
    beta_ptr,
    pairs_ptr,
    systems_ptr,
    factors_ptr,
    positions,
    slices,
    entries,
    begin,
    end,
    q_row,
    k_row,
    g_row,
    beta_row,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    TABLE: tl.constexpr,
    BATCHED: tl.constexpr,
    PAIRED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (HV, N): a program prepares a chunk of one value head, and every N-th chunk after it, of
    the chunks ``begin:end`` of the step. The first value head of a key head stores K and Q.

    Rows of a chunk that are not of its slice are as if they were zero. Chunks of few rows are left
    out, see ``chunks``."""
    start_dependents(PDL)
    MATRICES: tl.constexpr = 4 if PAIRED else 2
    head = tl.program_id(0)
    wait_for_producers(PDL)
    counts = chunks_of_slices(slices, positions, entries, TABLE)
    ends = tl.cumsum(counts, 0)
    end = tl.minimum(end, tl.sum(counts, 0))
    t = tl.arange(0, CHUNK_ROWS)
    q_ptr += head % HK * DK
    k_ptr += head % HK * DK
    g_ptr += head
    beta_ptr += head
    for chunk in range(begin + tl.program_id(1), end, tl.num_programs(1)):
        index = tl.sum((ends <= chunk).to(tl.int32), 0)
        before = tl.sum(tl.where(ends <= chunk, counts, 0), 0)
        base, start, stop, _slot, _chunks = slice_at(slices, positions, index)
        opening, closing = rows_of_chunk(base, start, stop, chunk - before)
        if closing - opening > SHORT_ROWS:
            row = base + (chunk - before) * CHUNK_ROWS + t
            inside = (row >= start) & (row < stop)
            k = load_rows(k_ptr, row, k_row, inside, DK)
            g = tl.load(g_ptr + row * g_row, mask=inside, other=0.0)
            beta = tl.load(beta_ptr + row * beta_row, mask=inside, other=0.0)
            total = tl.cumsum(g.to(tl.float64), 0)
            last = tl.sum(g.to(tl.float64), 0)
            high_g = total.to(tl.float32)
            low_g = (total - high_g.to(tl.float64)).to(tl.float32)
            rest = tl.exp((last - total).to(tl.float32))
            # As in ``closed_form.decays``, with few conversions of float64, which are slow.
            gap = high_g[:, None] - high_g[None, :] + (low_g[:, None] - low_g[None, :])
            decay = tl.exp(tl.where(t[:, None] >= t[None, :], gap, float("-inf")))
            tile = tl.cast(chunk - begin, tl.int64)
            place = tile * HV + head
            found, mixed, unscale_k, unscale_q = make_system(
                k, q_ptr, row, q_row, inside, beta, decay, head < HK,
                pairs_ptr + (tile * HK + head % HK) * (MATRICES * CHUNK_ROWS * DK),
                DK, CHUNK_ROWS, CHUNK_LEVELS, BATCHED, PAIRED,
            )  # fmt: skip
            high_t, low_t = halves(found, PAIRED)
            high_m, low_m = halves(mixed, PAIRED)
            AFTER: tl.constexpr = 2 * CHUNK_ROWS
            at = systems_ptr + place * (MATRICES * CHUNK_ROWS * CHUNK_ROWS)
            store_pair(at, high_t, low_t, AFTER, CHUNK_ROWS, CHUNK_ROWS, PAIRED)
            at += CHUNK_ROWS * CHUNK_ROWS
            store_pair(at, high_m, low_m, AFTER, CHUNK_ROWS, CHUNK_ROWS, PAIRED)
            fall = tl.exp(high_g)
            at = factors_ptr + place * (ROW_FACTORS * CHUNK_ROWS) + t
            tl.store(at, fall * unscale_k)
            tl.store(at + CHUNK_ROWS, fall * unscale_q)
            tl.store(at + 2 * CHUNK_ROWS, unscale_q)
            tl.store(at + 3 * CHUNK_ROWS, rest * unscale_k * (1 / SCALE))
            tl.store(at + 4 * CHUNK_ROWS, tl.zeros_like(rest) + tl.exp(last.to(tl.float32)))
