"""Slices of the gated delta rule row after row, the baseline of ``delta.py``.

It computes in plain float32, and the state stays in registers for the whole slice.

A warp holds four rows of a head's state [values, keys], each in eight lanes. It needs no data of
other warps: a row of x costs four products with the state and two sums over eight lanes, without
shared memory. The next four rows of x are prefetched; each load is issued when the registers it
overwrites have been used, though the compiler may move it behind later products. The warps of a
program share a head, so a row of x that one warp has loaded is in the cache for the others. The
update by a row depends neither on where its slice begins nor on which checkpoints are stored.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers

TILE_KEYS = tl.constexpr(32)
"""Keys of a tile, four in each lane."""

LANES = tl.constexpr(8)
HEIGHT = 4
"""Rows of the state that a warp holds."""

AHEAD = tl.constexpr(4)
"""Rows of the slice that are prefetched."""


@triton.jit
def _keys(ROWS: tl.constexpr):
    """[ROWS * LANES, 4]: keys of a tile, the same in each of its rows.

    Rows and lanes form one dimension, here as everywhere, which forces Triton to give a row to
    lanes of one warp.
    """
    return tl.arange(0, ROWS * LANES)[:, None] % LANES * 4 + tl.arange(0, 4)[None, :]


@triton.jit
def _vector(at, TILES: tl.constexpr):
    """A tuple of tiles of one vector of keys, as they are stored."""
    found = ()
    for j in tl.static_range(TILES):
        found = found + (tl.load(at + j * TILE_KEYS),)  # type: ignore[assignment]
    return found


@triton.jit
def _row(at, there, TILES: tl.constexpr):
    """The operands of a row, as stored, in one tuple: TILES tiles of k and of q, then v, decay and
    rate. If the row is not ``there``, log decay and rate are 0, so that the state does not change.
    """
    k, q, v, g, beta = at
    decay = tl.load(g, mask=there, other=0.0)
    rate = tl.load(beta, mask=there, other=0.0)
    return _vector(k, TILES) + _vector(q, TILES) + (tl.load(v), decay, rate)


@triton.jit
def _moved(at, steps, forward):
    """Pointers to the next row if ``forward``, else to the same row."""
    found = ()
    for i in tl.static_range(5):
        found = found + (at[i] + tl.where(forward, steps[i], 0),)
    return found


@triton.jit
def _product(state, row, at: tl.constexpr, TILES: tl.constexpr):
    """[ROWS * LANES]: the state times the tiles of ``row`` from ``at``, in each lane of a row."""
    met = state[0] * row[at].to(tl.float32)
    for j in tl.static_range(1, TILES):
        met += state[j] * row[at + j].to(tl.float32)
    parts = tl.reshape(tl.sum(met, 1), [met.shape[0] // LANES, LANES])
    total = tl.broadcast_to(tl.sum(parts, 1)[:, None], parts.shape)
    return tl.reshape(total, [met.shape[0]])


@triton.jit
def _state_at(
    state_ptr, slot, head, first, ROWS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    HV: tl.constexpr,
):  # fmt: skip
    """Pointers to the first tile of a program's part of a state."""
    value = first + tl.arange(0, ROWS * LANES)[:, None] // LANES
    return state_ptr + (slot * HV + head) * (DV * DK) + value * DK + _keys(ROWS)


@triton.jit
def _leave(at, state, TILES: tl.constexpr):
    for j in tl.static_range(TILES):
        tl.store(at + j * TILE_KEYS, state[j])


@triton.jit
def _next_store(store_rows, stores, after, stop):
    """The first row after ``after`` whose state is stored as a checkpoint; ``stop`` if none is."""
    found = stop
    for index in range(stores):
        row = tl.load(store_rows + index)
        found = tl.where((row > after) & (row < found), row, found)
    return found


@triton.jit(do_not_specialize=["stores"])
def scan_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    g_ptr,
    beta_ptr,
    state_ptr,
    out_ptr,
    slices,
    store_rows,
    store_slots,
    stores,
    q_row,
    k_row,
    v_row,
    g_row,
    beta_row,
    HK: tl.constexpr,
    HV: tl.constexpr,
    DK: tl.constexpr,
    DV: tl.constexpr,
    ROWS: tl.constexpr,
    STORES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (HV * DV / ROWS, S): a program advances ROWS rows of one head's state over a slice."""
    start_dependents(PDL)
    TILES: tl.constexpr = DK // TILE_KEYS
    PROGRAMS: tl.constexpr = DV // ROWS
    head = tl.program_id(0) // PROGRAMS
    first = tl.program_id(0) % PROGRAMS * ROWS
    wait_for_producers(PDL)
    entry = slices + 3 * tl.program_id(1)
    start = tl.load(entry).to(tl.int64)
    count = tl.load(entry + 1)
    stop = start + count
    slot = tl.load(entry + 2).to(tl.int64)
    lane = tl.arange(0, ROWS * LANES)
    at = (
        k_ptr + start * k_row + head % HK * DK + _keys(ROWS),
        q_ptr + start * q_row + head % HK * DK + _keys(ROWS),
        v_ptr + start * v_row + head * DV + first + lane // LANES,
        g_ptr + start * g_row + head,
        beta_ptr + start * beta_row + head,
    )
    steps = (k_row, q_row, v_row, g_row, beta_row)
    out_ptr += head * DV + first
    mine = _state_at(state_ptr, slot, head, first, ROWS, DK, DV, HV)
    state = ()
    for j in tl.static_range(TILES):
        state = state + (tl.load(mine + j * TILE_KEYS),)  # type: ignore[assignment]
    rows = ()
    for u in tl.static_range(AHEAD):
        rows = rows + (_row(at, u < count, TILES),)  # type: ignore[assignment]
        at = _moved(at, steps, u + 1 < count)
    store = _next_store(store_rows, stores, start - 1, stop)
    for done in range(0, count, AHEAD):
        later = ()
        for u in tl.static_range(AHEAD):
            row = start + done + u
            x = rows[u]  # type: ignore[var-annotated]
            decay = tl.exp(x[2 * TILES + 1])
            met = _product(state, x, 0, TILES)
            d = x[2 * TILES + 2] * (x[2 * TILES].to(tl.float32) - decay * met)
            moved = ()
            for j in tl.static_range(TILES):
                new = decay * state[j] + d[:, None] * x[j].to(tl.float32)
                moved = moved + (new,)
            state = moved
            read = _product(state, x, TILES, TILES)
            # Load before the store: it waits for the sum, and no load may pass it.
            number = done + AHEAD + u
            later = later + (_row(at, number < count, TILES),)
            at = _moved(at, steps, number + 1 < count)
            one = lane % LANES == tl.where(row < stop, 0, -1)
            tl.store(out_ptr + row * (HV * DV) + lane // LANES, read, mask=one)
            if STORES:
                due = (row == store) & (row < stop)
                if due:
                    for index in range(stores):
                        if tl.load(store_rows + index) == row:
                            target = tl.load(store_slots + index).to(tl.int64)
                            there = _state_at(state_ptr, target, head, first, ROWS, DK, DV, HV)
                            _leave(there, state, TILES)
                    store = _next_store(store_rows, stores, row, stop)
        rows = later
    _leave(mine, state, TILES)
