"""The kernel that builds trees of drafts."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers


@triton.jit
def draft_trees_kernel(
    tokens_ptr,
    scores_ptr,
    budget_ptr,
    out_tokens_ptr,
    out_parents_ptr,
    counts_ptr,
    DEPTHS: tl.constexpr,
    CANDIDATES: tl.constexpr,
    NODES: tl.constexpr,
    PLACES: tl.constexpr,
    NO_ROW: tl.constexpr,
    CHAIN_SEEDED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (L,): a program builds one tree. Every row offers its next candidate, and the rows are
    the lanes of a warp, so the best offer is one reduction, and a heap is not needed."""
    start_dependents(PDL)
    NOTHING: tl.constexpr = float("-inf")
    LAST: tl.constexpr = 2147483647
    tl.static_assert(DEPTHS * CANDIDATES * PLACES < LAST)
    sequence = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, PLACES)
    tokens_ptr += sequence * (DEPTHS * CANDIDATES)
    scores_ptr += sequence * (DEPTHS * CANDIDATES)
    parent = tl.full([PLACES], NO_ROW, tl.int32)
    total = tl.zeros([PLACES], tl.float32)
    depth, children, chosen = (
        tl.zeros([PLACES], tl.int32),
        tl.zeros([PLACES], tl.int32),
        tl.zeros([PLACES], tl.int32),
    )
    wait_for_producers(PDL)
    budget = tl.minimum(tl.load(budget_ptr + sequence), NODES)
    offers = tl.load(scores_ptr + row, mask=row == 0, other=NOTHING)
    offers = tl.where(offers > NOTHING, offers, NOTHING)
    best = tl.max(offers, 0)
    new = tl.full([], 1, tl.int32)
    while (new <= budget) & (best > NOTHING):
        wanted = offers == best
        if CHAIN_SEEDED:
            tip = (row == new - 1) & (depth == row) & (offers > NOTHING)
            wanted = tl.where(tl.max(tip.to(tl.int32), 0) > 0, tip, wanted)
        order = (depth * CANDIDATES + children) * PLACES + row
        first = tl.min(tl.where(wanted, order, LAST), 0)
        candidate = first // PLACES
        above = row == first % PLACES
        if CHAIN_SEEDED:
            best = tl.max(tl.where(above, offers, NOTHING), 0)
        below = row == new
        parent = tl.where(below, first % PLACES, parent)
        total = tl.where(below, best, total)
        chosen = tl.where(below, candidate, chosen)
        depth = tl.where(below, candidate // CANDIDATES + 1, depth)
        children += above.to(tl.int32)
        left = (above | below) & (depth < DEPTHS) & (children < CANDIDATES)
        score = tl.load(scores_ptr + depth * CANDIDATES + children, mask=left, other=NOTHING)
        offer = total + score
        offers = tl.where(above | below, tl.where(offer > NOTHING, offer, NOTHING), offers)
        best = tl.max(offers, 0)
        new += 1
    there = (row > 0) & (row < new)
    token = tl.load(tokens_ptr + chosen, mask=there, other=0)
    out = sequence * NODES + row - 1
    inside = (row > 0) & (row <= NODES)
    tl.store(out_tokens_ptr + out, token, mask=inside)
    tl.store(out_parents_ptr + out, parent.to(tl.int64), mask=inside)
    tl.store(counts_ptr + sequence, (new - 1).to(tl.int64))
