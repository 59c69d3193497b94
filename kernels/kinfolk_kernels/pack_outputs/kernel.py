"""The kernel that packs the outputs of a step."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import start_dependents, wait_for_producers


@triton.jit(do_not_specialize=["sequences", "sampled"])
def pack_outputs_kernel(
    hidden_ptr,
    spans_ptr,
    finite_ptr,
    rows_ptr,
    tokens_ptr,
    n_keep_ptr,
    following_ptr,
    path_ptr,
    out_ptr,
    sequences,
    sampled,
    hidden_row,
    HIDDEN: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    PLACES: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (sequences + sampled,): a program checks the last hidden row of a sequence, or copies
    the outputs of a sampled sequence."""
    start_dependents(PDL)
    program = tl.program_id(0)
    wait_for_producers(PDL)
    if program < sequences:
        first, rows = tl.load(spans_ptr + 4 * program), tl.load(spans_ptr + 4 * program + 1)
        # A padding sequence has no rows: it checks the first row of the step instead.
        last = tl.maximum(first + rows - 1, 0).to(tl.int64)
        sound = 1
        for start in range(0, HIDDEN, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            number = hidden_ptr + last * hidden_row + column
            x = tl.load(number, mask=column < HIDDEN, other=0.0).to(tl.float32)
            sound = tl.minimum(sound, tl.min((tl.abs(x) < float("inf")).to(tl.int32), 0))
        tl.store(out_ptr + program, sound.to(tl.int64))
    else:
        index = program - sequences
        place = tl.arange(0, PLACES)
        inside = place < WIDTH
        row = tl.load(rows_ptr + index * WIDTH + place, mask=inside, other=-1)
        finite = tl.load(finite_ptr + row, mask=row >= 0, other=1).to(tl.int32)
        out = out_ptr + sequences + index
        tl.store(out, tl.min(finite, 0).to(tl.int64))
        kept, following = tl.load(n_keep_ptr + index), tl.load(following_ptr + index)
        tl.store(out + sampled, kept)
        tl.store(out + 2 * sampled, following)
        path = tl.load(path_ptr + index * WIDTH + place, mask=inside, other=-1)
        out = out_ptr + sequences + 3 * sampled + index * WIDTH + place
        tl.store(out, path, mask=inside)
        drafted = place + 1 < kept
        # The path may be shorter than ``kept`` says, and ``kept`` larger than the path is wide.
        follows = drafted & (place + 1 < WIDTH)
        row = tl.load(path_ptr + index * WIDTH + place + 1, mask=follows, other=0)
        row = tl.maximum(row, 0)
        emitted = tl.load(tokens_ptr + index * WIDTH + row, mask=drafted, other=-1)
        emitted = tl.where(place + 1 == kept, following, emitted)
        tl.store(out + sampled * WIDTH, emitted, mask=inside)
