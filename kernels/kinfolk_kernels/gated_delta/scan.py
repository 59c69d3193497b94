"""The kernel that carries states over the chunks of certain slices, one chunk after the other.

``prepare`` has computed what needs no state; formulas are in ``systems``. A program has some values
of a head. They are the rows of all its products, so that the state, x and d stay in registers as
left operands, while the right ones, K, Q, T and M, are copied from memory a chunk ahead. Each
left operand is split into a pair of float16 (see ``pairs``), each row with its own scale, so that
the product is as precise for large and for small states.

What a chunk computes depends on its own rows and on the state before it only: a state is scaled by
powers of two that are a function of the state.

A chunk of few rows, which only the first and the last of a slice can be, is advanced row by row.
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
from kinfolk_kernels.gated_delta.pairs import add_product, halves, pair_of_rows, scale_of
from kinfolk_kernels.gated_delta.prepare import ROW_FACTORS
from kinfolk_kernels.gated_delta.systems import load_pair, multiply_state

NEGLIGIBLE = tl.constexpr(2.0**-16)
"""Updates are scaled as if they were at least this part of the state: their low parts are exact to
2^-49 of it then."""


@triton.jit
def _values(v_ptr, row, v_row, values, inside):
    """[rows, values] of v as stored, 0 where not ``inside``."""
    at = v_ptr + row.to(tl.int64)[:, None] * v_row + values[None, :]
    return tl.load(at, mask=inside[:, None], other=0.0)


@triton.jit
def _next_store(store_rows, stores, after, stop):
    """The first row after ``after`` whose state is stored as a checkpoint; ``stop`` if none is."""
    found = stop
    for index in range(stores):
        row = tl.load(store_rows + index).to(tl.int32)
        found = tl.where((row > after) & (row < found), row, found)
    return found


@triton.jit
def _store(state_ptr, store_rows, store_slots, stores, first, last, place, size, state):
    """Store ``state`` as the checkpoint of every row in ``first:last``."""
    for index in range(stores):
        row = tl.load(store_rows + index)
        if (row >= first) & (row < last):
            slot = tl.load(store_slots + index).to(tl.int64)
            tl.store(state_ptr + slot * size + place, state)


@triton.jit
def _chunk_of(row, base, start, stop, first, last):
    """Of the chunk with a row: its first row, whether it is one of the slice's chunks
    ``first:last`` that are not advanced row by row, and its last row."""
    chunk = (row - base) // CHUNK_ROWS
    begun, end = rows_of_chunk(base, start, stop, chunk)
    among = (row >= start) & (row < stop) & (chunk >= first) & (chunk < last)
    return begun, among & (end - begun > SHORT_ROWS), end - 1


@triton.jit
def _short_rows(base, start, stop, chunk, asked):
    """The rows from, to of a slice in a chunk; none unless ``asked`` and the chunk is short."""
    begun, end = rows_of_chunk(base, start, stop, chunk)
    return begun, tl.where(asked & (end - begun <= SHORT_ROWS), end, begun)


@triton.jit
def _advance(
    k_ptr, v_ptr, g_ptr, beta_ptr, row, k_row, v_row, g_row, beta_row, keys, values, state
):
    """The state after ``row``, by the definition."""
    k = tl.load(k_ptr + row * k_row + keys).to(tl.float32)
    v = tl.load(v_ptr + row * v_row + values).to(tl.float32)
    state *= tl.exp(tl.load(g_ptr + row * g_row))
    d = tl.load(beta_ptr + row * beta_row) * (v - tl.sum(state * k[None, :], 1))
    return state + d[:, None] * k[None, :]


@triton.jit
def _row_by_row(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, state_ptr, out_ptr, store_rows, store_slots, stores,
    first, last, q_row, k_row, v_row, g_row, beta_row, out_row, size, keys, values, place, state,
    STORES: tl.constexpr,
):  # fmt: skip
    """The state after the rows ``first:last``, whose outputs and checkpoints are stored."""
    for index in range(first, last):
        row = tl.cast(index, tl.int64)
        state = _advance(
            k_ptr, v_ptr, g_ptr, beta_ptr, row, k_row, v_row, g_row, beta_row, keys, values, state
        )
        q = tl.load(q_ptr + row * q_row + keys).to(tl.float32)
        tl.store(out_ptr + row * out_row + values, tl.sum(state * q[None, :], 1))
        if STORES:
            _store(state_ptr, store_rows, store_slots, stores, index, index + 1, place, size, state)
    return state


@triton.jit(do_not_specialize=["entries", "begin", "end", "stores"])
def scan_kernel(
    q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, state_ptr, out_ptr, pairs_ptr, systems_ptr, factors_ptr,
    positions, slices, store_rows, store_slots, entries, begin, end, stores,
    q_row, k_row, v_row, g_row, beta_row,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr,
    TABLE: tl.constexpr, STORES: tl.constexpr, STAGES: tl.constexpr, PAIRED: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid (HV * DV / BV, N): a program advances BV values of a head over a slice, and over every
    N-th slice after it.

    A checkpoint inside a chunk gets the state before the chunk first, and then the rows up to its
    own, one by one.
    """
    start_dependents(PDL)
    MATRICES: tl.constexpr = 4 if PAIRED else 2
    head = tl.program_id(0) // (DV // BV)
    values = tl.program_id(0) % (DV // BV) * BV + tl.arange(0, BV)
    keys = tl.arange(0, DK)
    t = tl.arange(0, CHUNK_ROWS)
    place = (head * DV + values)[:, None] * DK + keys[None, :]
    pairs_ptr += head % HK * (MATRICES * CHUNK_ROWS * DK)
    systems_ptr += head * (MATRICES * CHUNK_ROWS * CHUNK_ROWS)
    factors_ptr += head * (ROW_FACTORS * CHUNK_ROWS)
    q_ptr += head % HK * DK
    k_ptr += head % HK * DK
    v_ptr += head * DV
    out_ptr += head * DV
    g_ptr += head
    beta_ptr += head
    wait_for_producers(PDL)
    counts = chunks_of_slices(slices, positions, entries, TABLE)
    ends = tl.cumsum(counts, 0)
    # A slice belongs to this launch if some of its chunks do.
    ours = (counts > 0) & (ends > begin) & (ends - counts < end)
    ranks = tl.cumsum(ours.to(tl.int32), 0)
    for rank in range(tl.program_id(1), tl.sum(ours.to(tl.int32), 0), tl.num_programs(1)):
        index = tl.sum((ranks <= rank).to(tl.int32), 0)
        before = tl.sum(tl.where(tl.arange(0, TABLE) < index, counts, 0), 0)
        base, start, stop, slot, chunks = slice_at(slices, positions, index)
        first = tl.maximum(begin - before, 0)
        last = tl.minimum(end - before, chunks)
        at = state_ptr + slot * (HV * DV * DK) + place
        state = tl.load(at)
        # Chunks ``opening:closing`` are not short.
        row, short = _short_rows(base, start, stop, first, first < last)
        opening = first + (short > row).to(tl.int32)
        state = _row_by_row(
            q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, state_ptr, out_ptr, store_rows, store_slots,
            stores, row, short, q_row, k_row, v_row, g_row, beta_row, HV * DV, HV * DV * DK,
            keys, values, place, state, STORES,
        )  # fmt: skip
        tail, short = _short_rows(base, start, stop, last - 1, opening < last)
        closing = last - (short > tail).to(tl.int32)
        store = stop
        if STORES:
            begun, _ = rows_of_chunk(base, start, stop, opening)
            store = _next_store(store_rows, stores, begun - 1, stop)
        row = base + opening * CHUNK_ROWS + t
        v = _values(v_ptr, row, v_row, values, (row >= start) & (row < stop))
        unscale = tl.zeros([BV], tl.float32) + 1
        for chunk in tl.range(opening, closing, num_stages=STAGES):
            row = base + chunk * CHUNK_ROWS + t
            inside = (row >= start) & (row < stop)
            final = tl.minimum(base + (chunk + 1) * CHUNK_ROWS, stop) - 1
            if STORES:
                before_end = store < final
                if before_end:
                    begun = tl.maximum(base + chunk * CHUNK_ROWS, start)
                    _store(
                        state_ptr, store_rows, store_slots, stores, begun, final,
                        place, HV * DV * DK, state * unscale[:, None],
                    )  # fmt: skip
            tile = tl.cast(before + chunk - begin, tl.int64)
            pairs_at = pairs_ptr + tile * (HK * MATRICES * CHUNK_ROWS * DK)
            system_at = systems_ptr + tile * (HV * MATRICES * CHUNK_ROWS * CHUNK_ROWS)
            factors = factors_ptr + tile * (HV * ROW_FACTORS * CHUNK_ROWS)
            most = tl.max(tl.abs(state), 1)
            scale, further = scale_of(most)
            state *= scale[:, None]
            most *= unscale
            unscale *= further
            high, low = halves(state, PAIRED)
            x, out, high_k, low_k = multiply_state(
                high, low, unscale, v, pairs_at, factors, BV, DK, CHUNK_ROWS, PAIRED
            )
            high, low, unscale_x = pair_of_rows(x, PAIRED)
            # T and M are the two halves of one right operand.
            high_t, low_t = load_pair(system_at, 2 * CHUNK_ROWS, CHUNK_ROWS, PAIRED)
            both = tl.zeros([BV, 2 * CHUNK_ROWS], tl.float32)
            both = add_product(both, high, low, tl.trans(high_t), tl.trans(low_t), PAIRED)
            both = tl.permute(tl.reshape(both, [BV, 2, CHUNK_ROWS]), (0, 2, 1))
            d, more = tl.split(both)
            mixed = tl.load(factors + 2 * CHUNK_ROWS + t)
            out += more * (unscale_x[:, None] * mixed[None, :])
            row_at = out_ptr + (row.to(tl.int64) * (HV * DV))[None, :] + values[:, None]
            tl.store(row_at, out, mask=inside[None, :])
            rest = tl.load(factors + 3 * CHUNK_ROWS + t)
            d *= unscale_x[:, None] * rest[None, :]
            scale, further = scale_of(tl.maximum(tl.max(tl.abs(d), 1), NEGLIGIBLE * most))
            high, low = halves(d * scale[:, None], PAIRED)
            # In registers of its own, because copies to shared memory would be of single numbers.
            v = _values(v_ptr, row + CHUNK_ROWS, v_row, values, row + CHUNK_ROWS < stop)
            state *= (tl.load(factors + 4 * CHUNK_ROWS) * unscale * scale)[:, None]
            state = add_product(state, high, low, high_k, low_k, PAIRED)
            unscale = further
            if STORES:
                passed = store <= final
                if passed:
                    _store(
                        state_ptr, store_rows, store_slots, stores, final, final + 1,
                        place, HV * DV * DK, state * unscale[:, None],
                    )  # fmt: skip
                    store = _next_store(store_rows, stores, final, stop)
        state *= unscale[:, None]
        state = _row_by_row(
            q_ptr, k_ptr, v_ptr, g_ptr, beta_ptr, state_ptr, out_ptr, store_rows, store_slots,
            stores, tail, short, q_row, k_row, v_row, g_row, beta_row, HV * DV, HV * DV * DK,
            keys, values, place, state, STORES,
        )  # fmt: skip
        tl.store(at, state)
        if STORES:
            # What is stored above is read by other threads of this program.
            tl.debug_barrier()
            for number in range(stores):
                after = tl.load(store_rows + number).to(tl.int32)
                begun, begins, final = _chunk_of(after, base, start, stop, first, last)
                if begins & (after < final):
                    target = tl.load(store_slots + number).to(tl.int64) * (HV * DV * DK) + place
                    state = tl.load(state_ptr + target)
                    for later in range(after + 1 - begun):
                        state = _advance(
                            k_ptr, v_ptr, g_ptr, beta_ptr, begun.to(tl.int64) + later,
                            k_row, v_row, g_row, beta_row, keys, values, state,
                        )  # fmt: skip
                    tl.store(state_ptr + target, state)
