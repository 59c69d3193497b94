"""The kernel that accepts drafts along equal tokens."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers


@triton.jit
def accept_drafts_kernel(
    chosen_ptr,
    tokens_ptr,
    parents_ptr,
    budget_ptr,
    path_ptr,
    n_keep_ptr,
    next_ptr,
    WIDTH: tl.constexpr,
    PLACES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (L,): a program follows its sequence's path from the first row to matching children."""
    start_dependents(PDL)
    sequence = tl.program_id(0)
    place = tl.arange(0, PLACES)
    at = sequence * WIDTH + place
    inside = place < WIDTH
    wait_for_producers(PDL)
    budget = tl.load(budget_ptr + sequence)
    tokens = tl.load(tokens_ptr + at, mask=inside, other=0)
    parents = tl.load(parents_ptr + at, mask=inside & (place > 0), other=-1)
    path = tl.where(place == 0, 0, -1)
    length = tl.full([], 1, tl.int32)
    row = tl.full([], 0, tl.int32)
    wanted = tl.load(chosen_ptr + sequence * WIDTH)
    going = budget > 1
    while going:
        right = (parents == row) & (tokens == wanted)
        child = tl.min(tl.where(right, place, WIDTH), 0)
        matches = child < WIDTH
        row = tl.where(matches, child, row)
        wanted = tl.load(chosen_ptr + sequence * WIDTH + row)
        path = tl.where(matches & (place == length), child, path)
        length += matches.to(tl.int32)
        going = matches & (length < budget)
    tl.store(path_ptr + at, path.to(tl.int64), mask=inside)
    tl.store(n_keep_ptr + sequence, length.to(tl.int64))
    tl.store(next_ptr + sequence, wanted)
