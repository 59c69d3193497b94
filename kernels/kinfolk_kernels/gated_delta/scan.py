"""Certain slices, row after row: the state stays in registers from the first row to the last.

A warp holds four rows of a head's state [values, keys], each in eight lanes, and needs no other: a
row costs it four products with the state, two sums over eight lanes and nothing in shared memory.
Rows come in pairs, so that the next two are on their way. The warps of a program have the same
head: what one has read of a row, the others find in their processor's cache. What a row does to the
state depends neither on where its slice begins nor on what is stored.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers

KEYS = tl.constexpr(32)
"""Keys in a tile: four a lane."""

LANES = tl.constexpr(8)
HEIGHT = 4
"""Rows of the state that a warp holds."""

AHEAD = tl.constexpr(2)
"""Rows of the slice on their way."""


@triton.jit
def _keys(ROWS: tl.constexpr):
    """[ROWS, LANES, 4]: keys of a tile, the same in each of its rows."""
    key = tl.arange(0, LANES)[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]
    return key + tl.zeros([ROWS, 1, 1], tl.int32)


@triton.jit
def _values(ROWS: tl.constexpr):
    """[ROWS, LANES]: rows of a tile, in a form that tells the compiler to keep one to a lane."""
    return (tl.arange(0, ROWS)[:, None] * LANES + tl.arange(0, LANES)[None, :]) // LANES


@triton.jit
def _vector(pointer, ROWS: tl.constexpr, TILES: tl.constexpr):
    """A tuple of tiles of one vector of keys."""
    found = ()
    for j in tl.static_range(TILES):
        x = tl.load(pointer + _keys(ROWS) + j * KEYS).to(tl.float32)
        found = found + (x,)  # type: ignore[assignment]
    return found


@triton.jit
def _row(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, row, stop, q_row, k_row, v_row, g_row, beta_row,
    ROWS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """All that a row brings, flat: TILES tiles of k and of q, then v, decay and rate. From ``stop``
    on there are only rows that change nothing."""
    inside = row < stop
    row = tl.minimum(row, stop - 1)
    k = _vector(k_ptr + row * k_row, ROWS, TILES)
    q = _vector(q_ptr + row * q_row, ROWS, TILES)
    v = tl.load(v_ptr + row * v_row + _values(ROWS)).to(tl.float32)
    g = tl.load(g_ptr + row * g_row, mask=inside, other=0.0)
    beta = tl.load(beta_ptr + row * beta_row, mask=inside, other=0.0)
    return k + q + (v, g, beta)


@triton.jit
def _product(state, vector, at: tl.constexpr, TILES: tl.constexpr):
    """[ROWS, 1]: the state times the tiles of ``vector`` from ``at``."""
    met = state[0] * vector[at]
    for j in tl.static_range(1, TILES):
        met += state[j] * vector[at + j]
    return tl.sum(tl.sum(met, 2), 1)[:, None]


@triton.jit
def _state_at(
    state_ptr, slot, head, first, ROWS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    HV: tl.constexpr,
):  # fmt: skip
    """Pointers to the first tile of a program's part of a state."""
    value = first + tl.arange(0, ROWS)[:, None, None]
    return state_ptr + (slot * HV + head) * (DV * DK) + value * DK + _keys(ROWS)


@triton.jit
def _leave(at, state, TILES: tl.constexpr):
    for j in tl.static_range(TILES):
        tl.store(at + j * KEYS, state[j])


@triton.jit
def _next_store(store_rows, stores, after, stop):
    """The first row after ``after`` behind which the state is stored; ``stop`` if none is."""
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
    """Grid (HV * DV / ROWS, S): ROWS rows of one head's state go through a slice."""
    start_dependents(PDL)
    TILES: tl.constexpr = DK // KEYS
    SIZE: tl.constexpr = 2 * TILES + 3
    PROGRAMS: tl.constexpr = DV // ROWS
    head = tl.program_id(0) // PROGRAMS
    first = tl.program_id(0) % PROGRAMS * ROWS
    wait_for_producers(PDL)
    entry = slices + 3 * tl.program_id(1)
    start = tl.load(entry).to(tl.int64)
    count = tl.load(entry + 1)
    stop = start + count
    slot = tl.load(entry + 2).to(tl.int64)
    k_ptr += head % HK * DK
    q_ptr += head % HK * DK
    v_ptr += head * DV + first
    g_ptr += head
    beta_ptr += head
    out_ptr += head * DV + first
    mine = _state_at(state_ptr, slot, head, first, ROWS, DK, DV, HV)
    state = ()
    for j in tl.static_range(TILES):
        state = state + (tl.load(mine + j * KEYS),)  # type: ignore[assignment]
    rows = ()
    for u in tl.static_range(AHEAD):
        rows = rows + _row(
            q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, start + u, stop, q_row, k_row, v_row, g_row,
            beta_row, ROWS, TILES,
        )  # fmt: skip
    store = _next_store(store_rows, stores, start - 1, stop)
    for done in range(0, count, AHEAD):
        later = ()
        for u in tl.static_range(AHEAD):
            row = start + done + u
            decay = tl.exp(rows[u * SIZE + SIZE - 2])
            beta = rows[u * SIZE + SIZE - 1]  # type: ignore[var-annotated]
            met = _product(state, rows, u * SIZE, TILES)
            d = beta * (rows[u * SIZE + 2 * TILES] - decay * met)
            moved = ()
            for j in tl.static_range(TILES):
                new = decay * state[j] + d[:, :, None] * rows[u * SIZE + j]
                moved = moved + (new,)  # type: ignore[assignment]
            state = moved
            read = _product(state, rows, u * SIZE + TILES, TILES)
            one = (tl.arange(0, LANES) == tl.where(row < stop, 0, -1))[None, :]
            to = out_ptr + row * (HV * DV) + _values(ROWS)
            tl.store(to, tl.broadcast_to(read, [ROWS, LANES]), mask=one)
            later = later + _row(
                q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, row + AHEAD, stop, q_row, k_row, v_row,
                g_row, beta_row, ROWS, TILES,
            )  # fmt: skip
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
