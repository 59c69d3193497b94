"""The kernel that prepares chunks of slices, all of them in parallel: what needs no state.

With G the decay summed from the chunk's first row, A_ij = beta_i e^{G_i - G_j} (k_i . k_j) for
j < i and P_ij = e^{G_i - G_j} (q_i . k_j) for j <= i, it stores pairs (see ``pairs``) of K, Q,
T = (I + A)^-1 and M = P T, and what ``scan`` multiplies rows by. The rows of a chunk then obey
    x_i = beta_i (v_i - e^{G_i} S k_i),   d = T x,   o_i = e^{G_i} S q_i + (M x)_i,
with S the state before the chunk.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.gated_delta.chunks import CHUNK_ROWS, chunks_of_slices, slice_at
from kinfolk_kernels.gated_delta.pairs import add_product, halves, pair_of_rows

ROW_FACTORS = tl.constexpr(6)
"""Numbers by which ``scan`` multiplies a row of a value head: beta; beta e^G for S k; e^G for S q;
1 for M x; e^{end - G} for the update; e^{end}, the same for all rows of a chunk. They also unscale
k, q and T."""

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
def _twice(found, between):
    """The inverses of diagonal blocks from those of their halves, and from what is ``between``
    these; all are SCALE times as large."""
    high, low = halves(found)
    high_b, low_b = halves(between)
    zero = tl.zeros(found.shape, tl.float32)
    high_p, low_p = halves(add_product(zero, high, low, high_b, low_b) * (1 / SCALE))
    return found - add_product(zero, high_p, low_p, high, low) * (1 / SCALE)


@triton.jit
def _inverse(a):
    """(I + A)^-1 of a strictly lower triangular chunk, see ``closed_form.inverse``: four steps for
    its diagonal blocks in one batch, then two for the whole. ``a`` and the result are SCALE times
    as large as A and the inverse."""
    parts = tl.reshape(a, [BLOCKS, SMALL, BLOCKS, SMALL])
    blocks = tl.sum(tl.where(_same_block(), parts, 0.0), 2)
    row = tl.arange(0, SMALL)[None, :, None]
    column = tl.arange(0, SMALL)[None, None, :]
    small = tl.where(row == column, SCALE, 0.0) - tl.where((row ^ column) == 1, blocks, 0.0)
    for level in tl.static_range(1, 4):
        small = _twice(small, tl.where(((row ^ column) >> level) == 1, blocks, 0.0))
    wide = tl.where(_same_block(), tl.expand_dims(small, 2), 0.0)
    found = tl.reshape(wide, [CHUNK_ROWS, CHUNK_ROWS])
    row = tl.arange(0, CHUNK_ROWS)[:, None]
    column = tl.arange(0, CHUNK_ROWS)[None, :]
    for level in tl.static_range(4, 6):
        found = _twice(found, tl.where(((row ^ column) >> level) == 1, a, 0.0))
    return found


@triton.jit
def _load_rows(base, row, stride, inside, DK: tl.constexpr):
    at = base + row.to(tl.int64)[:, None] * stride + tl.arange(0, DK)[None, :]
    return tl.load(at, mask=inside[:, None], other=0.0).to(tl.float32)


@triton.jit
def _store_pair(base, high, low, AFTER: tl.constexpr, WIDTH: tl.constexpr):
    """The low part comes AFTER rows later."""
    at = base + tl.arange(0, CHUNK_ROWS)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(at, high)
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
    PDL: tl.constexpr,
):
    """Grid (HK, N): a program prepares a chunk of one key head and of its value heads, and every
    N-th chunk after it, of the chunks ``begin:end`` of the step.

    Rows of a chunk that are not of its slice are as if they were zero."""
    start_dependents(PDL)
    head = tl.program_id(0)
    wait_for_producers(PDL)
    counts = chunks_of_slices(slices, positions, entries, TABLE)
    ends = tl.cumsum(counts, 0)
    end = tl.minimum(end, tl.sum(counts, 0))
    t = tl.arange(0, CHUNK_ROWS)
    for chunk in range(begin + tl.program_id(1), end, tl.num_programs(1)):
        index = tl.sum((ends <= chunk).to(tl.int32), 0)
        before = tl.sum(tl.where(ends <= chunk, counts, 0), 0)
        base, start, stop, _slot, _chunks = slice_at(slices, positions, index)
        begun = base + (chunk - before) * CHUNK_ROWS
        row = begun + t
        inside = (row >= start) & (row < stop)
        tile = tl.cast(chunk - begin, tl.int64)
        pairs_at = pairs_ptr + (tile * HK + head) * (4 * CHUNK_ROWS * DK)
        zero = tl.zeros([CHUNK_ROWS, CHUNK_ROWS], tl.float32)
        k = _load_rows(k_ptr + head * DK, row, k_row, inside, DK)
        high_k, low_k, unscale_k = pair_of_rows(k)
        _store_pair(pairs_at, high_k, low_k, CHUNK_ROWS, DK)
        keys, low_keys = tl.trans(high_k), tl.trans(low_k)
        met = add_product(zero, high_k, low_k, keys, low_keys)
        met *= unscale_k[:, None] * unscale_k[None, :]
        q = _load_rows(q_ptr + head * DK, row, q_row, inside, DK)
        high_q, low_q, unscale_q = pair_of_rows(q)
        _store_pair(pairs_at + 2 * CHUNK_ROWS * DK, high_q, low_q, CHUNK_ROWS, DK)
        read = add_product(zero, high_q, low_q, keys, low_keys) * unscale_k[None, :]
        for value_head in range(head, HV, HK):
            g = tl.load(g_ptr + row * g_row + value_head, mask=inside, other=0.0)
            beta = tl.load(beta_ptr + row * beta_row + value_head, mask=inside, other=0.0)
            total = tl.cumsum(g.to(tl.float64), 0)
            high_g = total.to(tl.float32)
            low_g = (total - high_g.to(tl.float64)).to(tl.float32)
            # As in ``closed_form.decays``, with few conversions of float64, which are slow.
            gap = high_g[:, None] - high_g[None, :] + (low_g[:, None] - low_g[None, :])
            decay = tl.exp(tl.where(t[:, None] >= t[None, :], gap, float("-inf")))
            strict = t[:, None] > t[None, :]
            found = _inverse(tl.where(strict, (beta * SCALE)[:, None] * decay * met, 0.0))
            high_t, low_t = halves(found)
            high_p, low_p = halves(decay * read)
            mixed = add_product(zero, high_p, low_p, high_t, low_t) * (1 / SCALE)
            high_m, low_m = halves(mixed)
            place = tile * HV + value_head
            system_at = systems_ptr + place * (4 * CHUNK_ROWS * CHUNK_ROWS)
            _store_pair(system_at, high_t, low_t, 2 * CHUNK_ROWS, CHUNK_ROWS)
            system_at += CHUNK_ROWS * CHUNK_ROWS
            _store_pair(system_at, high_m, low_m, 2 * CHUNK_ROWS, CHUNK_ROWS)
            fall = tl.exp(high_g)
            last = tl.sum(g.to(tl.float64), 0)
            rest = tl.exp((last - total).to(tl.float32))
            at = factors_ptr + place * (ROW_FACTORS * CHUNK_ROWS) + t
            tl.store(at, beta)
            tl.store(at + CHUNK_ROWS, beta * fall * unscale_k)
            tl.store(at + 2 * CHUNK_ROWS, fall * unscale_q)
            tl.store(at + 3 * CHUNK_ROWS, unscale_q)
            tl.store(at + 4 * CHUNK_ROWS, rest * unscale_k * (1 / SCALE))
            tl.store(at + 5 * CHUNK_ROWS, tl.zeros_like(rest) + tl.exp(last.to(tl.float32)))
