"""Everything between a delta net's projections and its recurrence, in one kernel.

Convolution, SiLU, unit keys and queries, and the gates: g = a softplus(alpha + dt), rate =
sigmoid(beta) (Yang et al., 2024).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.causal_conv.kernels import convolved, keep_states
from kinfolk_kernels.curves import sigmoid, softplus


@triton.jit
def _gates(
    alpha_ptr,
    beta_ptr,
    a_ptr,
    dt_ptr,
    g_ptr,
    rate_ptr,
    row,
    inside,
    alpha_row,
    beta_row,
    HV: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Decays and rates of all heads of some rows."""
    head = tl.arange(0, WIDTH)
    mask = inside[:, None] & (head < HV)[None, :]
    alpha = tl.load(alpha_ptr + row[:, None] * alpha_row + head[None, :], mask=mask, other=0.0)
    beta = tl.load(beta_ptr + row[:, None] * beta_row + head[None, :], mask=mask, other=0.0)
    a = tl.load(a_ptr + head, mask=head < HV, other=0.0)
    dt = tl.load(dt_ptr + head, mask=head < HV, other=0.0)
    at = row[:, None] * HV + head[None, :]
    g = a[None, :] * softplus(alpha.to(tl.float32) + dt[None, :])
    tl.store(g_ptr + at, g, mask=mask)
    tl.store(rate_ptr + at, sigmoid(beta.to(tl.float32)), mask=mask)


@triton.jit(do_not_specialize=["rows", "stores"])
def heads_kernel(
    x_ptr,
    weight_ptr,
    state_ptr,
    alpha_ptr,
    beta_ptr,
    a_ptr,
    dt_ptr,
    out_ptr,
    g_ptr,
    rate_ptr,
    parents,
    sequences,
    slots,
    spans,
    store_rows,
    store_slots,
    rows,
    stores,
    channels,
    x_row,
    alpha_row,
    beta_row,
    scale,
    eps,
    HK: tl.constexpr,
    HV: tl.constexpr,
    GATES: tl.constexpr,
    DIM: tl.constexpr,
    TAPS: tl.constexpr,
    BR: tl.constexpr,
    SINGLES: tl.constexpr,
    STORES: tl.constexpr,
):
    """Grid (rows / BR, channels / DIM + 1): a program makes DIM channels of BR rows, the last one
    of a row its gates. DIM divides a head of keys: it is one."""
    row = tl.program_id(0).to(tl.int64) * BR + tl.arange(0, BR)
    inside = row < rows
    head = tl.program_id(1)
    if head == channels // DIM:
        _gates(
            alpha_ptr,
            beta_ptr,
            a_ptr,
            dt_ptr,
            g_ptr,
            rate_ptr,
            row,
            inside,
            alpha_row,
            beta_row,
            HV,
            GATES,
        )
    else:
        c = head * DIM + tl.arange(0, DIM)
        sequence = tl.load(sequences + row, mask=inside, other=0)
        slot = tl.load(slots + sequence, mask=inside, other=0)
        out = convolved(
            x_ptr, weight_ptr, state_ptr, parents, row, slot, inside, c, x_row, channels, TAPS
        )
        unit = tl.rsqrt(tl.sum(out * out, 1) + eps)[:, None]
        out *= tl.where(head < HK, unit * scale, tl.where(head < 2 * HK, unit, 1.0))
        tl.store(out_ptr + row[:, None] * channels + c[None, :], out, mask=inside[:, None])
        keep_states(
            x_ptr,
            state_ptr,
            parents,
            spans,
            store_rows,
            store_slots,
            stores,
            row,
            sequence,
            slot,
            inside,
            c,
            x_row,
            channels,
            TAPS,
            SINGLES,
            STORES,
        )
