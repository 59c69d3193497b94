"""Drafted segments of a few rows: each row by itself, in float32, without shared memory.

For so few rows a product of tiles is a chain of exchanges and nothing else. Here a lane multiplies
its own keys, and adds up with the seven others of its row of the state. Every row of lanes has the
products of keys and of queries with keys, which is less work than to exchange them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.gated_delta.lanes import (
    LANES,
    PART_KEYS,
    lane_keys,
    lane_values,
    load_among,
    load_parts,
    load_parts_among,
)

FEW_ROWS = tl.constexpr(4)
"""Most rows of such a segment. The products of keys with keys grow with the square of the rows."""

FEW_VALUES = tl.constexpr(16)
"""Rows of a state at a time: one for eight lanes of four warps."""


@triton.jit
def _dot(a, b, PARTS: tl.constexpr):
    """[lanes]: the products of two tiles, row by row, in each lane of a row."""
    met = a[0] * b[0]
    for i in tl.static_range(1, PARTS):
        met = tl.fma(a[i], b[i], met)
    parts = tl.reshape(tl.sum(met, 1), [met.shape[0] // LANES, LANES])
    total = tl.broadcast_to(tl.sum(parts, 1)[:, None], parts.shape)
    return tl.reshape(total, [met.shape[0]])


@triton.jit
def _number(index, count, at):
    return tl.load(at, mask=index < count, other=0)


@triton.jit
def _paths_and_totals(path_ptr, g_ptr, g_row, count, ROWS: tl.constexpr):
    """Of each row its path, and the sum of decays along it in float64."""
    paths, decays, totals = (), (), ()
    for t in tl.static_range(ROWS):
        paths = paths + (_number(t, count, path_ptr + t),)  # type: ignore[assignment]
        g = _number(t, count, g_ptr + t * g_row)
        decays = decays + (g.to(tl.float64),)  # type: ignore[assignment]
    for t in tl.static_range(ROWS):
        total = decays[t]  # type: ignore[var-annotated]
        for s in tl.static_range(t):
            total += tl.where(_follows(paths[t], s), decays[s], 0.0)
        totals = totals + (total,)  # type: ignore[assignment]
    return paths, totals


@triton.jit
def _follows(path, s: tl.constexpr):
    """Whether row ``s`` of the segment is on a row's path."""
    return ((path >> s) & 1) != 0


@triton.jit
def _decay(path, s: tl.constexpr, later, earlier):
    """The decay from row ``s`` to a later one, 0 if it is not on its path."""
    # Selected before the exponential: the difference may be positive otherwise.
    gap = tl.where(_follows(path, s), (later - earlier).to(tl.float32), float("-inf"))
    return tl.exp(gap)


@triton.jit
def few_rows(
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
    ROWS: tl.constexpr,
):
    """Outputs and trace of ``count`` rows, at most ROWS, for BV rows of one head's state. Pointers
    are those of the segment's first row and of the head.
    ``stored_keys``: of how many rows the trace's keys are stored here."""
    PARTS: tl.constexpr = DK // PART_KEYS
    keys = lane_keys(BV)
    value = tile * BV + lane_values(BV)
    state = load_parts(state_ptr + value[:, None] * DK + keys, PARTS)
    k, q, v, rate = (), (), (), ()
    for t in tl.static_range(ROWS):
        k = k + (load_parts_among(t, count, k_ptr + t * k_row + keys, PARTS),)  # type: ignore[assignment]
        q = q + (load_parts_among(t, count, q_ptr + t * q_row + keys, PARTS),)  # type: ignore[assignment]
        x = load_among(t, count, v_ptr + t * v_row + value)
        v = v + (x.to(tl.float32),)  # type: ignore[assignment]
        rate = rate + (_number(t, count, beta_ptr + t * beta_row),)  # type: ignore[assignment]
    paths, totals = _paths_and_totals(path_ptr, g_ptr, g_row, count, ROWS)
    d, outs = (), ()
    for t in tl.static_range(ROWS):
        fall = tl.exp(totals[t].to(tl.float32))
        # Fused by name: left to the compiler, it would choose one of two products, and the choice
        # could differ between tiles.
        right = tl.fma(-fall, _dot(state, k[t], PARTS), v[t])
        out = fall * _dot(state, q[t], PARTS)
        for s in tl.static_range(t):
            decay = _decay(paths[t], s, totals[t], totals[s])
            right = tl.fma(-decay * _dot(k[t], k[s], PARTS), d[s], right)
            out = tl.fma(decay * _dot(q[t], k[s], PARTS), d[s], out)
        d = d + (rate[t] * right,)  # type: ignore[assignment]
        outs = outs + (tl.fma(_dot(q[t], k[t], PARTS), d[t], out),)  # type: ignore[assignment]
    # Without branches, and behind all products, so that those of all rows are in flight at a time.
    lane = tl.arange(0, BV * LANES)
    for t in tl.static_range(ROWS):
        there = (lane % LANES == 0) & (lane * 0 + t < count)
        tl.store(out_ptr + t * (HV * DV) + value, outs[t], mask=there)
        tl.store(trace_d + t * (HV * DV) + value, d[t], mask=there)
        # All programs of a head store equal sums.
        tl.store(trace_total + t * HV, totals[t], mask=t < count)
        kept = (lane < LANES) & (lane * 0 + t < stored_keys)
        for i in tl.static_range(PARTS):
            at = trace_k + t * (HK * DK) + i * PART_KEYS + keys
            tl.store(at, k[t][i], mask=kept[:, None] & (keys >= 0))
