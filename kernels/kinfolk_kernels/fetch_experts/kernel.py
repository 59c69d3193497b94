"""The product with gate and up that brings what it misses into near bays, for one row.

A program whose expert is far copies its part of the record: first of the matrix down, then the rows
of gate and up that it multiplies from where it has put them. So no launch stands between the choice
of experts and their product, near experts are multiplied while others come, the launch of down
begins while gate and up still come, and no launch ends with a part of a record.
"""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import release, start_dependents, wait_for_producers
from kinfolk_kernels.experts.far_records import moved, record_of
from kinfolk_kernels.experts.pair_kernels import NO_SHARED_EXPERT, gate_up, openness
from kinfolk_kernels.fetch.residency import (
    add_counts,
    counts_so_far,
    is_last,
    moved_in,
    next_fetch,
    residency_ahead,
    residency_of,
    store_residency,
    store_scores,
    used_of,
)


@triton.constexpr_function
def _piece(count, most):
    """The length of the pieces in which ``count`` words are copied: a power of two."""
    return max(1, min(most, triton.next_power_of_2(count)))


@triton.jit
def _words(ptr, quad, ROW: tl.constexpr, NR: tl.constexpr, PIECE: tl.constexpr):
    """The words of NR quads of a plane, ROW words each, in pieces."""
    COUNT: tl.constexpr = ROW * NR
    PART: tl.constexpr = _piece(COUNT, PIECE)
    held = ()
    for i in tl.static_range((COUNT + PART - 1) // PART):
        word = i * PART + tl.arange(0, PART)
        held = held + (tl.load(ptr + quad * ROW + word, mask=word < COUNT, other=0),)
    return held


@triton.jit
def _store(ptr, held, quad, ROW: tl.constexpr, NR: tl.constexpr, PIECE: tl.constexpr):
    """Store what ``_words`` has loaded."""
    COUNT: tl.constexpr = ROW * NR
    PART: tl.constexpr = _piece(COUNT, PIECE)
    for i in tl.static_range((COUNT + PART - 1) // PART):
        word = i * PART + tl.arange(0, PART)
        tl.store(ptr + quad * ROW + word, held[i], mask=word < COUNT)


@triton.jit
def _decide(
    missed, count_it, ids_ptr, rows_ptr, bay_ptr, owner_ptr, score_ptr, uses_ptr, traffic_ptr,
    done_ptr,
    pairs, bays, pinned, decay,
    E: tl.constexpr, TOP_K: tl.constexpr, SIZE: tl.constexpr, PAIRS: tl.constexpr,
    DECIDERS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The bay that the expert ``missed`` comes to. One program decides to ``count_it``, and
    DECIDERS for each pair that misses its expert; the last of them stores the state. Until then it
    is the old one, so each of them, whenever it begins, sees that its expert is missed."""
    uses, traffic = counts_so_far(uses_ptr, traffic_ptr, count_it, E, SIZE)
    bay, owner, score, count = residency_of(
        ids_ptr, rows_ptr, bay_ptr, owner_ptr, score_ptr, pairs, bays, decay, E, TOP_K, SIZE, PAIRS
    )
    used = count > 0
    misses, hits = used_of(count, bay, bays)
    own = misses * 0
    if misses == 0:
        start_dependents(PDL)
        store_scores(score_ptr, score, E, SIZE)
    else:
        deciders = 1 + DECIDERS * tl.sum(tl.where(bay >= bays, count, 0), 0)
        expert, leaving, to, more = next_fetch(used, score, bay, owner, pinned, bays, SIZE)
        while more:
            own = tl.where(expert == missed, to, own)
            bay, owner = moved_in(bay, owner, expert, leaving, to, bays, SIZE)
            expert, leaving, to, more = next_fetch(used, score, bay, owner, pinned, bays, SIZE)
        if is_last(done_ptr, deciders):
            store_scores(score_ptr, score, E, SIZE)
            store_residency(bay_ptr, owner_ptr, done_ptr, bay, owner, bays, E, SIZE)
            release(PDL)
    if count_it:
        add_counts(uses_ptr, traffic_ptr, uses, traffic, count, hits, misses, misses, E, SIZE)
    return own


@triton.jit(do_not_specialize=["pairs", "near", "pinned", "decay", "d_step", "record", "words"])
def fetch_gate_up_kernel(
    x_ptr, d_ptr, numbers_ptr, ids_ptr, bay_ptr, rows_ptr,
    gate_q, gate_high, gate_scales, gate_supers,
    up_q, up_high, up_scales, up_supers,
    shared_gate_q, shared_gate_high, shared_gate_scales, shared_gate_supers,
    shared_up_q, shared_up_high, shared_up_scales, shared_up_supers,
    far_ptr, shared_gate_ptr,
    inner_ptr, shared_inner_ptr, open_ptr,
    down_ptr, owner_ptr, score_ptr, uses_ptr, traffic_ptr, done_ptr,
    pairs, near, pinned, decay,
    d_step, record, words,
    K: tl.constexpr, F: tl.constexpr, SHARED_F: tl.constexpr, TOP_K: tl.constexpr,
    FORMAT: tl.constexpr, SHARED: tl.constexpr,
    ACTIVATION: tl.constexpr, GATED: tl.constexpr, MASKED: tl.constexpr,
    E: tl.constexpr, SIZE: tl.constexpr, PAIRS: tl.constexpr,
    Q: tl.constexpr, HIGH: tl.constexpr, SCALES: tl.constexpr, SUPERS: tl.constexpr,
    PIECE: tl.constexpr,
    NR: tl.constexpr, LANES: tl.constexpr,
    ASM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Grid (pairs, or one more for the shared expert, parts + 1): the first program counts and
    decides, those behind the first of each pair compute what ``gate_up_kernel`` computes for a row.

    ``down_ptr`` is the matrix down in bay 0, ``words`` units of 16 bytes. A quad of the planes of
    gate has Q, HIGH, SCALES and SUPERS words, as one of up.
    """
    pair, part = tl.program_id(0), tl.program_id(1) - 1
    PARTS: tl.constexpr = F // 4 // NR
    decides = (pair == 0) & (part < 0)
    if PDL and decides:
        residency_ahead(bay_ptr, score_ptr, uses_ptr, E, SIZE)
    wait_for_producers(PDL)
    first = part.to(tl.int64) * NR
    if part < 0:
        if decides:
            _decide(
                -1, True, ids_ptr, rows_ptr, bay_ptr, owner_ptr, score_ptr, uses_ptr, traffic_ptr,
                done_ptr, pairs, near, pinned, decay, E, TOP_K, SIZE, PAIRS, PARTS, PDL,
            )  # fmt: skip
    elif pair < pairs:
        expert = tl.load(ids_ptr + pair)
        there = (part < PARTS) & (tl.load(rows_ptr) > 0)
        bay = tl.load(bay_ptr + expert, mask=there, other=-1).to(tl.int64)
        if bay >= near:
            source = record_of(bay, gate_q, far_ptr, near, record)
            each = tl.cdiv(words, PARTS) * 4
            begin = part * each
            end = tl.minimum(begin + each, words * 4)
            word = begin + tl.arange(0, PIECE)
            piece = tl.load(moved(down_ptr, source) + word, mask=word < end)
            bay = _decide(
                expert, False, ids_ptr, rows_ptr, bay_ptr, owner_ptr, score_ptr, uses_ptr,
                traffic_ptr, done_ptr, pairs, near, pinned, decay,
                E, TOP_K, SIZE, PAIRS, PARTS, PDL,
            ).to(tl.int64)  # fmt: skip
            target = bay * record
            tl.store(moved(down_ptr, target) + word, piece, mask=word < end)
            for start in tl.range(begin + PIECE, end, PIECE):
                word = start + tl.arange(0, PIECE)
                piece = tl.load(moved(down_ptr, source) + word, mask=word < end)
                tl.store(moved(down_ptr, target) + word, piece, mask=word < end)
            # The launch of down reads the map and its matrix before it waits.
            release(PDL)
            start_dependents(PDL)
            gate = _words(moved(gate_q, source), first, Q, NR, PIECE)
            up = _words(moved(up_q, source), first, Q, NR, PIECE)
            gate_tops = _words(moved(gate_high, source), first, HIGH, NR, PIECE)
            up_tops = _words(moved(up_high, source), first, HIGH, NR, PIECE)
            gate_parts = _words(moved(gate_scales, source), first, SCALES, NR, PIECE)
            up_parts = _words(moved(up_scales, source), first, SCALES, NR, PIECE)
            gate_wholes = _words(moved(gate_supers, source), first, SUPERS, NR, PIECE)
            up_wholes = _words(moved(up_supers, source), first, SUPERS, NR, PIECE)
            _store(moved(gate_q, target), gate, first, Q, NR, PIECE)
            _store(moved(up_q, target), up, first, Q, NR, PIECE)
            _store(moved(gate_high, target), gate_tops, first, HIGH, NR, PIECE)
            _store(moved(up_high, target), up_tops, first, HIGH, NR, PIECE)
            _store(moved(gate_scales, target), gate_parts, first, SCALES, NR, PIECE)
            _store(moved(up_scales, target), up_parts, first, SCALES, NR, PIECE)
            _store(moved(gate_supers, target), gate_wholes, first, SUPERS, NR, PIECE)
            _store(moved(up_supers, target), up_wholes, first, SUPERS, NR, PIECE)
            tl.debug_barrier()
        else:
            start_dependents(PDL)
        if bay >= 0:
            at = bay * record
            gate_up(
                moved(gate_q, at), moved(gate_high, at),
                moved(gate_scales, at), moved(gate_supers, at),
                moved(up_q, at), moved(up_high, at),
                moved(up_scales, at), moved(up_supers, at),
                x_ptr, d_ptr, d_step, first, inner_ptr + pair.to(tl.int64) * F,
                K, F, FORMAT, ACTIVATION, NR, LANES, MASKED, ASM,
            )  # fmt: skip
    else:
        start_dependents(PDL)
        if SHARED != NO_SHARED_EXPERT:
            if first < SHARED_F // 4:
                gate_up(
                    shared_gate_q, shared_gate_high, shared_gate_scales, shared_gate_supers,
                    shared_up_q, shared_up_high, shared_up_scales, shared_up_supers,
                    x_ptr, d_ptr, d_step, first, shared_inner_ptr,
                    K, SHARED_F, SHARED, ACTIVATION, NR, LANES, MASKED, ASM,
                )  # fmt: skip
            elif GATED and first == SHARED_F // 4:
                tl.store(open_ptr, openness(numbers_ptr, shared_gate_ptr, K, LANES))
