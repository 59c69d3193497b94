"""The kernel that brings chosen experts into near bays."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers
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


@triton.jit(do_not_specialize=["pairs", "bays", "pinned", "decay"])
def fetch_kernel(
    ids_ptr, rows_ptr, far_ptr,
    near_ptr, bay_ptr, owner_ptr, score_ptr, uses_ptr, traffic_ptr, done_ptr,
    pairs, bays, pinned, words,
    near_step, far_step,
    decay,
    E: tl.constexpr, TOP_K: tl.constexpr,
    SIZE: tl.constexpr, PAIRS: tl.constexpr, WORDS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid (programs,): every program decides alone what comes into which bay, all alike, and they
    share each record in pieces of WORDS words. Records have ``words`` int32.

    The next piece is asked for before the last one is stored, and what comes next is decided while
    pieces are on their way. The last program that has decided stores the map and the scores, as all
    have read them by then. If nothing comes, the first program does: the map stays, and what the
    others decide does not depend on scores.
    """
    start_dependents(PDL)
    programs, first = tl.num_programs(0), tl.program_id(0) == 0
    if PDL:
        residency_ahead(bay_ptr, score_ptr, uses_ptr, E, SIZE)
    wait_for_producers(PDL)
    uses, traffic = counts_so_far(uses_ptr, traffic_ptr, first, E, SIZE)
    bay, owner, score, count = residency_of(
        ids_ptr, rows_ptr, bay_ptr, owner_ptr, score_ptr, pairs, bays, decay, E, TOP_K, SIZE, PAIRS
    )
    misses, hits = used_of(count, bay, bays)
    used = count > 0
    fetched = misses * 0
    stores = first
    # What is on its way: its words, where they begin in a record, and its bay.
    held = tl.zeros([WORDS], tl.int32)
    held_at, held_bay = fetched + words, fetched
    if misses > 0:
        expert, leaving, to, more = next_fetch(used, score, bay, owner, pinned, bays, SIZE)
        while more:
            source = far_ptr + expert.to(tl.int64) * far_step
            for piece in tl.range(tl.program_id(0), tl.cdiv(words, WORDS), programs):
                word = piece * WORDS + tl.arange(0, WORDS)
                coming = tl.load(source + word, mask=word < words)
                word = held_at + tl.arange(0, WORDS)
                target = near_ptr + held_bay.to(tl.int64) * near_step
                tl.store(target + word, held, mask=word < words)
                held, held_at, held_bay = coming, piece * WORDS, to
            bay, owner = moved_in(bay, owner, expert, leaving, to, bays, SIZE)
            fetched += 1
            expert, leaving, to, more = next_fetch(used, score, bay, owner, pinned, bays, SIZE)
        if fetched > 0:
            stores = is_last(done_ptr, programs)
    if stores:
        store_scores(score_ptr, score, E, SIZE)
        if fetched > 0:
            store_residency(bay_ptr, owner_ptr, done_ptr, bay, owner, bays, E, SIZE)
    if first:
        add_counts(uses_ptr, traffic_ptr, uses, traffic, count, hits, fetched, misses, E, SIZE)
    word = held_at + tl.arange(0, WORDS)
    target = near_ptr + held_bay.to(tl.int64) * near_step
    tl.store(target + word, held, mask=word < words)
