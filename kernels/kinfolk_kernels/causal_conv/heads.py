"""The kernel of ``delta_inputs``: from a delta net's projections to the gated delta rule.

It computes the convolution, SiLU, queries and keys of unit length, and the gates g =
a softplus(alpha + dt) and rate = sigmoid(beta) (Yang et al., 2024).
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.activations import sigmoid, softplus
from kinfolk_kernels.causal_conv.kernels import (
    convolved,
    fetch_state,
    keep_states,
    seen_by,
    taps_of,
)
from kinfolk_kernels.dependent import start_dependents, wait_for_producers


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
    PDL: tl.constexpr,
):
    """Store decays and rates of all heads of some rows."""
    head = tl.arange(0, WIDTH)
    mask = inside[:, None] & (head < HV)[None, :]
    a = tl.load(a_ptr + head, mask=head < HV, other=0.0)
    dt = tl.load(dt_ptr + head, mask=head < HV, other=0.0)
    wait_for_producers(PDL)
    alpha = tl.load(alpha_ptr + row[:, None] * alpha_row + head[None, :], mask=mask, other=0.0)
    beta = tl.load(beta_ptr + row[:, None] * beta_row + head[None, :], mask=mask, other=0.0)
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
    PDL: tl.constexpr,
):
    """Grid (rows / BR, channels / DIM + 1): a program computes DIM channels, one head, of BR rows;
    the last program computes the gates of its rows."""
    start_dependents(PDL)
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
            PDL,
        )
    else:
        c = head * DIM + tl.arange(0, DIM)
        taps = taps_of(weight_ptr, c, channels, TAPS)
        if PDL and BR == 1:
            lines = head * DIM + tl.arange(0, (DIM + 31) // 32) * 32
            fetch_state(state_ptr, parents, sequences, slots, spans, row, lines, channels, TAPS)
        wait_for_producers(PDL)
        sequence = tl.load(sequences + row, mask=inside, other=0)
        slot = tl.load(slots + sequence, mask=inside, other=0)
        seen = seen_by(x_ptr, state_ptr, parents, row, slot, inside, c, x_row, channels, TAPS, TAPS)
        out = convolved(seen, taps, TAPS)
        unit = tl.rsqrt(tl.sum(out * out, 1) + eps)[:, None]
        out *= tl.where(head < HK, unit * scale, tl.where(head < 2 * HK, unit, 1.0))
        tl.store(out_ptr + row[:, None] * channels + c[None, :], out, mask=inside[:, None])
        keep_states(
            seen,
            state_ptr,
            spans,
            store_rows,
            store_slots,
            stores,
            row,
            sequence,
            slot,
            inside,
            c,
            channels,
            TAPS,
            SINGLES,
            STORES,
        )
