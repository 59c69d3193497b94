"""The kernel that fills the rows of drafted sequences."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers


@triton.jit(do_not_specialize=["vocabulary"])
def place_drafts_kernel(
    pending_ptr,
    stored_tokens_ptr,
    stored_parents_ptr,
    counts_ptr,
    spans_ptr,
    context_ptr,
    arena_start_ptr,
    tokens_ptr,
    positions_ptr,
    parent_row_ptr,
    limit_ptr,
    ancestors_ptr,
    arena_row_ptr,
    path_ptr,
    vocabulary,
    NODES: tl.constexpr,
    PLACES: tl.constexpr,
    ROUNDS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (B,): a program fills the rows of one sequence. In a step it stands before the first
    matrix, so launches behind that may read the rows before they wait."""
    start_dependents(PDL)
    sequence = tl.program_id(0)
    place = tl.arange(0, PLACES)
    wait_for_producers(PDL)
    span = spans_ptr + 4 * sequence
    rows, drafted = tl.load(span + 1), tl.load(span + 3)
    if (drafted == 1) & (rows > 0):
        first, slot = tl.load(span).to(tl.int64), tl.load(span + 2).to(tl.int64)
        context, start = tl.load(context_ptr + sequence), tl.load(arena_start_ptr + sequence)
        tree = start >= 0
        stored = (place > 0) & (place <= tl.minimum(tl.load(counts_ptr + slot), NODES))
        at = slot * NODES + place - 1
        token = tl.load(stored_tokens_ptr + at, mask=stored, other=0)
        parent = tl.load(stored_parents_ptr + at, mask=stored, other=-1)
        token = tl.where(place == 0, tl.load(pending_ptr + slot), token)
        known = (token >= 0) & (token < vocabulary)
        fits = (parent >= 0) & (parent < place) & (tree | (parent == place - 1))
        follows = stored & known & fits
        token = tl.where(known & (follows | (place == 0)), token, 0)
        above = tl.where(follows, parent, -1).to(tl.int32)
        depth = follows.to(tl.int32)
        path = tl.full([PLACES], 1, tl.int64) << place.to(tl.int64)
        up = above
        for _ in tl.static_range(ROUNDS):
            at = tl.maximum(up, 0)
            depth += tl.where(up >= 0, tl.gather(depth, at, 0), 0)
            path |= tl.where(up >= 0, tl.gather(path, at, 0), 0)
            up = tl.where(up >= 0, tl.gather(up, at, 0), -1)
        position = context + tl.where(tree, depth, place)
        row = first + place
        inside = place < rows
        tl.store(tokens_ptr + row, token, mask=inside)
        tl.store(positions_ptr + row, position, mask=inside)
        tl.store(parent_row_ptr + row, tl.where(above >= 0, first + above, -1), mask=inside)
        tl.store(limit_ptr + row, tl.where(tree, context - 1, position), mask=inside)
        tl.store(ancestors_ptr + row, tl.where(tree, path, 0), mask=inside)
        tl.store(arena_row_ptr + row, tl.where(tree, start + place, -1), mask=inside)
        tl.store(path_ptr + row, path, mask=inside)
