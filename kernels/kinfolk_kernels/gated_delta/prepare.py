"""The kernel that prepares chunks of slices, all of them in parallel: what needs no state.

With G the decay summed from the chunk's first row, A_ij = beta_i e^{G_i - G_j} (k_i . k_j) for
j < i and P_ij = e^{G_i - G_j} (q_i . k_j) for j <= i, it stores pairs (see ``pairs``) of K, Q,
T = (I + A)^-1 diag(beta) and M = P T, and what ``scan`` multiplies rows by. The rows of a chunk
then obey
    x_i = v_i - e^{G_i} S k_i,   d = T x,   o_i = e^{G_i} S q_i + (M x)_i,
with S the state before the chunk.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.gated_delta.chunks import (
    CHUNK_ROWS,
    SHORT_ROWS,
    chunks_of_slices,
    rows_of_chunk,
    slice_at,
)
from kinfolk_kernels.gated_delta.pairs import add_product, halves, pair_of_rows

ROW_FACTORS = tl.constexpr(5)
"""Numbers by which ``scan`` multiplies a row of a value head: e^G for S k; e^G for S q; 1 for M x;
e^{end - G} for the update; e^{end}, the same for all rows of a chunk. They also unscale k, q and
T."""

SMALL = tl.constexpr(16)
"""Rows of the diagonal blocks that are inverted in one batch."""

BLOCKS = tl.constexpr(4)

SCALE = tl.constexpr(256.0)
"""Numbers of A and T are at most about one, for keys of length one. So much larger, the low parts
of their pairs are exact to 2^-33, also of those that a decay has made small."""


@triton.jit
def _same_block():
    """[BLOCKS, 1, BLOCKS, 1]: whether a block is on the diagonal."""
    row = tl.arange(0, BLOCKS)[:, None, None, None]
    return row == tl.arange(0, BLOCKS)[None, None, :, None]


@triton.jit
def _twice(found, between, PAIRED: tl.constexpr):
    """The inverses of diagonal blocks from those of their halves, and from what is ``between``
    these; all are SCALE times as large."""
    high, low = halves(found, PAIRED)
    high_b, low_b = halves(between, PAIRED)
    zero = tl.zeros(found.shape, tl.float32)
    product = add_product(zero, high, low, high_b, low_b, PAIRED) * (1 / SCALE)
    high_p, low_p = halves(product, PAIRED)
    return found - add_product(zero, high_p, low_p, high, low, PAIRED) * (1 / SCALE)


@triton.jit
def _inverse(a, BATCHED: tl.constexpr, PAIRED: tl.constexpr):
    """(I + A)^-1 of a strictly lower triangular chunk, see ``closed_form.inverse``. ``a`` and the
    result are SCALE times as large as A and the inverse.

    ``BATCHED``: four steps for the diagonal blocks in one batch, then two for the whole: fewer
    operations. Otherwise all six for the whole, whose operands need fewer exchanges."""
    row = tl.arange(0, CHUNK_ROWS)[:, None]
    column = tl.arange(0, CHUNK_ROWS)[None, :]
    if BATCHED:
        parts = tl.reshape(a, [BLOCKS, SMALL, BLOCKS, SMALL])
        blocks = tl.sum(tl.where(_same_block(), parts, 0.0), 2)
        near = tl.arange(0, SMALL)[None, :, None] ^ tl.arange(0, SMALL)[None, None, :]
        small = tl.where(near == 0, SCALE, 0.0) - tl.where(near == 1, blocks, 0.0)
        for level in tl.static_range(1, 4):
            small = _twice(small, tl.where((near >> level) == 1, blocks, 0.0), PAIRED)
        wide = tl.where(_same_block(), tl.expand_dims(small, 2), 0.0)
        found = tl.reshape(wide, [CHUNK_ROWS, CHUNK_ROWS])
        for level in tl.static_range(4, 6):
            found = _twice(found, tl.where(((row ^ column) >> level) == 1, a, 0.0), PAIRED)
    else:
        found = tl.where(row == column, SCALE, 0.0) - tl.where((row ^ column) == 1, a, 0.0)
        for level in range(1, 6):
            found = _twice(found, tl.where(((row ^ column) >> level) == 1, a, 0.0), PAIRED)
    return found


@triton.jit
def _load_rows(base, row, stride, inside, DK: tl.constexpr):
    at = base + row.to(tl.int64)[:, None] * stride + tl.arange(0, DK)[None, :]
    return tl.load(at, mask=inside[:, None], other=0.0).to(tl.float32)


@triton.jit
def _store_pair(base, high, low, AFTER: tl.constexpr, WIDTH: tl.constexpr, PAIRED: tl.constexpr):
    """The low part comes AFTER rows later."""
    at = base + tl.arange(0, CHUNK_ROWS)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(at, high)
    if PAIRED:
        tl.store(at + AFTER * WIDTH, low)


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
            k = _load_rows(k_ptr, row, k_row, inside, DK)
            g = tl.load(g_ptr + row * g_row, mask=inside, other=0.0)
            beta = tl.load(beta_ptr + row * beta_row, mask=inside, other=0.0)
            total = tl.cumsum(g.to(tl.float64), 0)
            last = tl.sum(g.to(tl.float64), 0)
            high_g = total.to(tl.float32)
            low_g = (total - high_g.to(tl.float64)).to(tl.float32)
            rest = tl.exp((last - total).to(tl.float32))
            tile = tl.cast(chunk - begin, tl.int64)
            pairs_at = pairs_ptr + (tile * HK + head % HK) * (MATRICES * CHUNK_ROWS * DK)
            zero = tl.zeros([CHUNK_ROWS, CHUNK_ROWS], tl.float32)
            high_k, low_k, unscale_k = pair_of_rows(k, PAIRED)
            if head < HK:
                _store_pair(pairs_at, high_k, low_k, CHUNK_ROWS, DK, PAIRED)
            keys, low_keys = tl.trans(high_k), tl.trans(low_k)
            met = add_product(zero, high_k, low_k, keys, low_keys, PAIRED)
            # As in ``closed_form.decays``, with few conversions of float64, which are slow.
            gap = high_g[:, None] - high_g[None, :] + (low_g[:, None] - low_g[None, :])
            decay = tl.exp(tl.where(t[:, None] >= t[None, :], gap, float("-inf")))
            met *= (beta * unscale_k * SCALE)[:, None] * unscale_k[None, :]
            strict = t[:, None] > t[None, :]
            found = _inverse(tl.where(strict, decay * met, 0.0), BATCHED, PAIRED)
            high_t, low_t = halves(found * beta[None, :], PAIRED)
            q = _load_rows(q_ptr, row, q_row, inside, DK)
            high_q, low_q, unscale_q = pair_of_rows(q, PAIRED)
            if head < HK:
                at = pairs_at + MATRICES // 2 * CHUNK_ROWS * DK
                _store_pair(at, high_q, low_q, CHUNK_ROWS, DK, PAIRED)
            read = add_product(zero, high_q, low_q, keys, low_keys, PAIRED)
            high_p, low_p = halves(decay * read * unscale_k[None, :], PAIRED)
            mixed = add_product(zero, high_p, low_p, high_t, low_t, PAIRED) * (1 / SCALE)
            high_m, low_m = halves(mixed, PAIRED)
            place = tile * HV + head
            system_at = systems_ptr + place * (MATRICES * CHUNK_ROWS * CHUNK_ROWS)
            _store_pair(system_at, high_t, low_t, 2 * CHUNK_ROWS, CHUNK_ROWS, PAIRED)
            system_at += CHUNK_ROWS * CHUNK_ROWS
            _store_pair(system_at, high_m, low_m, 2 * CHUNK_ROWS, CHUNK_ROWS, PAIRED)
            fall = tl.exp(high_g)
            at = factors_ptr + place * (ROW_FACTORS * CHUNK_ROWS) + t
            tl.store(at, fall * unscale_k)
            tl.store(at + CHUNK_ROWS, fall * unscale_q)
            tl.store(at + 2 * CHUNK_ROWS, unscale_q)
            tl.store(at + 3 * CHUNK_ROWS, rest * unscale_k * (1 / SCALE))
            tl.store(at + 4 * CHUNK_ROWS, tl.zeros_like(rest) + tl.exp(last.to(tl.float32)))
