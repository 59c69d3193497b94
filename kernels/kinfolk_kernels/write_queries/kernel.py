"""The kernel that keeps the queries of the last rows of every sequence."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels import row_layout
from kinfolk_kernels.dependent import start_dependents, wait_for_producers
from kinfolk_kernels.write_queries import op

KEPT_ROWS = tl.constexpr(op.RING_ROWS)
PREVIEWED = tl.constexpr(row_layout.PREVIEWED)


@triton.jit(do_not_specialize=["sequences", "most_kept"])
def write_queries_kernel(
    q_ptr, positions, spans, path, n_keep, slots, ring_ptr, sequences, most_kept,
    q_row, q_head, ring_slot, ring_row, ring_head,
    HEADS: tl.constexpr, DIM: tl.constexpr, OWN: tl.constexpr, SIZE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Grid (sequences + drafted sequences, rows of the ring, heads / OWN): a program copies OWN
    heads of a row, the first of the last KEPT_ROWS, the second and so on."""
    start_dependents(PDL)
    wait_for_producers(PDL)
    program = tl.program_id(0)
    if program < sequences:
        first, rows = tl.load(spans + 4 * program), tl.load(spans + 4 * program + 1)
        slot = tl.load(spans + 4 * program + 2).to(tl.int64)
        drafted = tl.load(spans + 4 * program + 3)
        count = tl.where((drafted == 0) | (drafted == PREVIEWED), rows, 0).to(tl.int64)
        last = count - KEPT_ROWS + tl.program_id(1)
        row = first + last
    else:
        index = program - sequences
        slot = tl.load(slots + index)
        count = tl.minimum(tl.load(n_keep + index), most_kept)
        last = count - KEPT_ROWS + tl.program_id(1)
        row = tl.load(path + index * most_kept + last, mask=last >= 0, other=-1)
    # Padding has fewer rows than programs, or a row of -1.
    if (last < 0) | (row < 0):
        return
    position = tl.load(positions + row)
    head = tl.program_id(2) * OWN + tl.arange(0, OWN)
    d = tl.arange(0, SIZE)
    inside = (head < HEADS)[:, None] & (d < DIM)[None, :]
    x = tl.load(q_ptr + row * q_row + head[:, None] * q_head + d[None, :], mask=inside)
    to = ring_ptr + slot * ring_slot + position % KEPT_ROWS * ring_row
    tl.store(to + head[:, None] * ring_head + d[None, :], x, mask=inside)
