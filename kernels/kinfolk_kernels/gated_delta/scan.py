"""Certain slices, row after row: the state stays in registers from the first row to the last.

A warp holds VALUES times four rows of a head's state [values, keys], each in eight lanes, and needs
no other: a row costs it four products with the state, two sums over eight lanes and nothing in
shared memory. Rows come in pairs, so that the next two are on their way. What a row does to the
state depends neither on where its slice begins nor on what is stored.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers

KEYS = tl.constexpr(32)
"""Keys in a tile: four a lane."""

LANES = tl.constexpr(8)
HEIGHT = tl.constexpr(4)
"""Rows of the state in a tile."""

AHEAD = tl.constexpr(2)
"""Rows of the slice on their way."""


@triton.jit
def _keys():
    """[HEIGHT, LANES, 4]: keys of a tile, the same in each of its rows."""
    key = tl.arange(0, LANES)[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]
    return key + tl.zeros([HEIGHT, 1, 1], tl.int32)


@triton.jit
def _values():
    """[HEIGHT, LANES]: rows of a tile, in a form that tells the compiler to keep one to a lane."""
    return (tl.arange(0, HEIGHT)[:, None] * LANES + tl.arange(0, LANES)[None, :]) // LANES


@triton.jit
def _vector(pointer, TILES: tl.constexpr):
    """A tuple of tiles of one vector of keys."""
    found = ()
    for j in tl.static_range(TILES):
        x = tl.load(pointer + _keys() + j * KEYS).to(tl.float32)
        found = found + (x,)  # type: ignore[assignment]
    return found


@triton.jit
def _row(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, row, stop, q_row, k_row, v_row, g_row, beta_row,
    TILES: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    """All that a row brings, flat: TILES tiles of k and of q, VALUES of v, decay and rate. From
    ``stop`` on there are only rows that change nothing."""
    inside = row < stop
    row = tl.minimum(row, stop - 1)
    k = _vector(k_ptr + row * k_row, TILES)
    q = _vector(q_ptr + row * q_row, TILES)
    v = ()
    for i in tl.static_range(VALUES):
        x = tl.load(v_ptr + row * v_row + _values() + i * HEIGHT).to(tl.float32)
        v = v + (x,)  # type: ignore[assignment]
    g = tl.load(g_ptr + row * g_row, mask=inside, other=0.0)
    beta = tl.load(beta_ptr + row * beta_row, mask=inside, other=0.0)
    return k + q + v + (g, beta)


@triton.jit
def _product(state, vector, i: tl.constexpr, at: tl.constexpr, TILES: tl.constexpr):
    """[HEIGHT, 1]: tile row ``i`` of the state times the tiles of ``vector`` from ``at``."""
    met = state[i * TILES] * vector[at]
    for j in tl.static_range(1, TILES):
        met += state[i * TILES + j] * vector[at + j]
    return tl.sum(tl.sum(met, 2), 1)[:, None]


@triton.jit
def _state_at(state_ptr, slot, head, first, DK: tl.constexpr, DV: tl.constexpr, HV: tl.constexpr):
    """Pointers to the first tile of a program's part of a state."""
    value = first + tl.arange(0, HEIGHT)[:, None, None]
    return state_ptr + (slot * HV + head) * (DV * DK) + value * DK + _keys()


@triton.jit
def _leave(at, state, DK: tl.constexpr, TILES: tl.constexpr, VALUES: tl.constexpr):
    for i in tl.static_range(VALUES):
        for j in tl.static_range(TILES):
            tl.store(at + i * HEIGHT * DK + j * KEYS, state[i * TILES + j])


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
    VALUES: tl.constexpr,
    STORES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (HV * DV / (4 VALUES), S): a warp takes its rows of one head's state through a slice."""
    start_dependents(PDL)
    TILES: tl.constexpr = DK // KEYS
    SIZE: tl.constexpr = 2 * TILES + VALUES + 2
    PROGRAMS: tl.constexpr = DV // (HEIGHT * VALUES)
    head = tl.program_id(0) // PROGRAMS
    first = tl.program_id(0) % PROGRAMS * (HEIGHT * VALUES)
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
    mine = _state_at(state_ptr, slot, head, first, DK, DV, HV)
    state = ()
    for i in tl.static_range(VALUES):
        for j in tl.static_range(TILES):
            tile = tl.load(mine + i * HEIGHT * DK + j * KEYS)
            state = state + (tile,)  # type: ignore[assignment]
    rows = ()
    for u in tl.static_range(AHEAD):
        rows = rows + _row(
            q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, start + u, stop, q_row, k_row, v_row, g_row,
             beta_row, TILES, VALUES,
        )  # fmt: skip
    store = _next_store(store_rows, stores, start - 1, stop)
    for done in range(0, count, AHEAD):
        later = ()
        for u in tl.static_range(AHEAD):
            row = start + done + u
            decay = tl.exp(rows[u * SIZE + SIZE - 2])
            beta = rows[u * SIZE + SIZE - 1]  # type: ignore[var-annotated]
            moved = ()
            for i in tl.static_range(VALUES):
                met = _product(state, rows, i, u * SIZE, TILES)
                d = beta * (rows[u * SIZE + 2 * TILES + i] - decay * met)
                for j in tl.static_range(TILES):
                    kept = decay * state[i * TILES + j]
                    new = kept + d[:, :, None] * rows[u * SIZE + j]
                    moved = moved + (new,)  # type: ignore[assignment]
            state = moved
            for i in tl.static_range(VALUES):
                read = _product(state, rows, i, u * SIZE + TILES, TILES)
                line = out_ptr + row * (HV * DV) + i * HEIGHT
                one = (tl.arange(0, LANES) == tl.where(row < stop, 0, -1))[None, :]
                tl.store(line + _values(), tl.broadcast_to(read, [HEIGHT, LANES]), mask=one)
            later = later + _row(
                q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, row + AHEAD, stop, q_row, k_row, v_row,
                g_row, beta_row, TILES, VALUES,
            )  # fmt: skip
            if STORES:
                due = (row == store) & (row < stop)
                if due:
                    for index in range(stores):
                        if tl.load(store_rows + index) == row:
                            target = tl.load(store_slots + index).to(tl.int64)
                            there = _state_at(state_ptr, target, head, first, DK, DV, HV)
                            _leave(there, state, DK, TILES, VALUES)
                    store = _next_store(store_rows, stores, row, stop)
        rows = later
    _leave(mine, state, DK, TILES, VALUES)
