"""What the rows of a chunk are to each other: made by one kernel, multiplied by another.

Each of its C rows has seen some of those before it. With G a row's sum of decays, A_ij = beta_i
e^{G_i - G_j} (k_i . k_j) for the j before i that it has seen, and P_ij = e^{G_i - G_j} (q_i . k_j)
for these and i itself, a chunk's system is T = (I + A)^-1 diag(beta) and M = P T. Its rows obey
    x_i = v_i - e^{G_i} S k_i,   d = T x,   o_i = e^{G_i} S q_i + (M x)_i,
with S the state before the chunk. K and Q are stored as pairs, see ``pairs``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.gated_delta.pairs import add_product, halves, pair_of_rows

SMALL = tl.constexpr(16)
"""Rows of the diagonal blocks that are inverted in one batch."""

SMALL_LEVELS = tl.constexpr(4)

SCALE = tl.constexpr(256.0)
"""Numbers of A and T are at most about one, for keys of length one. So much larger, the low parts
of their pairs are exact to 2^-33, also of those that a decay has made small."""


@triton.jit
def _same_block(BLOCKS: tl.constexpr):
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
def _inverse(a, C: tl.constexpr, LEVELS: tl.constexpr, BATCHED: tl.constexpr, PAIRED: tl.constexpr):
    """(I + A)^-1 of a strictly lower triangular chunk of 2^LEVELS rows, see
    ``closed_form.inverse``. ``a`` and the result are SCALE times as large as A and the inverse.

    ``BATCHED``: four steps for the diagonal blocks in one batch, then the others for the whole:
    fewer operations. Otherwise all of them for the whole, whose operands need fewer exchanges."""
    row = tl.arange(0, C)[:, None]
    column = tl.arange(0, C)[None, :]
    if BATCHED:
        BLOCKS: tl.constexpr = C // SMALL
        parts = tl.reshape(a, [BLOCKS, SMALL, BLOCKS, SMALL])
        blocks = tl.sum(tl.where(_same_block(BLOCKS), parts, 0.0), 2)
        near = tl.arange(0, SMALL)[None, :, None] ^ tl.arange(0, SMALL)[None, None, :]
        small = tl.where(near == 0, SCALE, 0.0) - tl.where(near == 1, blocks, 0.0)
        for level in tl.static_range(1, SMALL_LEVELS):
            small = _twice(small, tl.where((near >> level) == 1, blocks, 0.0), PAIRED)
        wide = tl.where(_same_block(BLOCKS), tl.expand_dims(small, 2), 0.0)
        found = tl.reshape(wide, [C, C])
        for level in tl.static_range(SMALL_LEVELS, LEVELS):
            found = _twice(found, tl.where(((row ^ column) >> level) == 1, a, 0.0), PAIRED)
    else:
        found = tl.where(row == column, SCALE, 0.0) - tl.where((row ^ column) == 1, a, 0.0)
        for level in range(1, LEVELS):
            found = _twice(found, tl.where(((row ^ column) >> level) == 1, a, 0.0), PAIRED)
    return found


@triton.jit
def load_rows(base, row, stride, inside, DK: tl.constexpr):
    """float32 [rows, DK], 0 where not ``inside``."""
    at = base + row.to(tl.int64)[:, None] * stride + tl.arange(0, DK)[None, :]
    return tl.load(at, mask=inside[:, None], other=0.0).to(tl.float32)


@triton.jit
def store_pair(
    base, high, low, AFTER: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
    PAIRED: tl.constexpr,
):  # fmt: skip
    """The low part comes AFTER rows later."""
    at = base + tl.arange(0, HEIGHT)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(at, high)
    if PAIRED:
        tl.store(at + AFTER * WIDTH, low)


@triton.jit
def load_pair(base, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PAIRED: tl.constexpr):
    """(high, low) [HEIGHT, WIDTH] float16."""
    at = base + tl.arange(0, HEIGHT)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    high = tl.load(at)
    low = high
    if PAIRED:
        low = tl.load(at + HEIGHT * WIDTH)
    return high, low


@triton.jit
def make_system(
    k, q_ptr, row, q_row, inside, beta, decay, shared, pairs_at,
    DK: tl.constexpr, C: tl.constexpr, LEVELS: tl.constexpr, BATCHED: tl.constexpr,
    PAIRED: tl.constexpr,
):  # fmt: skip
    """T, SCALE times as large, and M of a chunk; M is still to be multiplied by what unscales Q.
    Then what unscales K and Q, [C] each.

    ``decay`` [C, C] is 0 for rows that were not seen. K and Q are stored if this head is the first
    with its key head (``shared``)."""
    MATRICES: tl.constexpr = 4 if PAIRED else 2
    t = tl.arange(0, C)
    zero = tl.zeros([C, C], tl.float32)
    high_k, low_k, unscale_k = pair_of_rows(k, PAIRED)
    if shared:
        store_pair(pairs_at, high_k, low_k, C, C, DK, PAIRED)
    keys, low_keys = tl.trans(high_k), tl.trans(low_k)
    met = add_product(zero, high_k, low_k, keys, low_keys, PAIRED)
    met *= (beta * unscale_k * SCALE)[:, None] * unscale_k[None, :]
    strict = t[:, None] > t[None, :]
    found = _inverse(tl.where(strict, decay * met, 0.0), C, LEVELS, BATCHED, PAIRED)
    found *= beta[None, :]
    high_t, low_t = halves(found, PAIRED)
    q = load_rows(q_ptr, row, q_row, inside, DK)
    high_q, low_q, unscale_q = pair_of_rows(q, PAIRED)
    if shared:
        store_pair(pairs_at + MATRICES // 2 * C * DK, high_q, low_q, C, C, DK, PAIRED)
    read = add_product(zero, high_q, low_q, keys, low_keys, PAIRED)
    high_p, low_p = halves(decay * read * unscale_k[None, :], PAIRED)
    mixed = add_product(zero, high_p, low_p, high_t, low_t, PAIRED) * (1 / SCALE)
    return found, mixed, unscale_k, unscale_q


@triton.jit
def multiply_state(
    high, low, unscale, v, pairs_at, factors,
    BV: tl.constexpr, DK: tl.constexpr, C: tl.constexpr, PAIRED: tl.constexpr,
):  # fmt: skip
    """x and e^G S q [BV, C] of a chunk's rows, and the pair of K.

    ``high``, ``low`` [BV, DK] are the state before it, of which ``unscale`` [BV] is the scale; v is
    [C, BV]. ``factors`` are the numbers by which S k and S q are multiplied, C each. Every right
    operand is loaded before its product, which is early enough where loads are pipelined, and saves
    registers elsewhere."""
    MATRICES: tl.constexpr = 4 if PAIRED else 2
    t = tl.arange(0, C)
    zero = tl.zeros([BV, C], tl.float32)
    high_k, low_k = load_pair(pairs_at, C, DK, PAIRED)
    met = add_product(zero, high, low, tl.trans(high_k), tl.trans(low_k), PAIRED)
    high_q, low_q = load_pair(pairs_at + MATRICES // 2 * C * DK, C, DK, PAIRED)
    out = add_product(zero, high, low, tl.trans(high_q), tl.trans(low_q), PAIRED)
    seen = tl.load(factors + t)
    x = tl.trans(v).to(tl.float32) - met * (unscale[:, None] * seen[None, :])
    read = tl.load(factors + C + t)
    out *= unscale[:, None] * read[None, :]
    return x, out, high_k, low_k
