"""Which rows of a step are which chunk of a slice, computed on the device from the table of slices.

Chunks begin at multiples of 64 positions of the text, so the first one of a slice may lack its
first rows, and the last one its last. The chunks of a step are numbered through, slice by slice.

A chunk with few rows of its slice is advanced row by row. Which rows are is a matter of the chunk
alone, so a slice that is resumed at a border of chunks gets the bits of the whole.
"""

from __future__ import annotations

import triton
import triton.language as tl

CHUNK_ROWS = tl.constexpr(64)
CHUNK_LEVELS = tl.constexpr(6)
"""Of which power of two."""

SHORT_ROWS = tl.constexpr(8)
"""Most rows of a chunk that are advanced one by one: in less time than preparing a chunk takes."""


@triton.jit
def _chunks(skip, rows):
    return tl.where(rows > 0, (skip + rows + CHUNK_ROWS - 1) // CHUNK_ROWS, 0)


@triton.jit
def chunks_of_slices(slices, positions, entries, TABLE: tl.constexpr):
    """int32 [TABLE]: how many chunks each slice has; padding has none."""
    entry = tl.arange(0, TABLE)
    inside = entry < entries
    start = tl.load(slices + 3 * entry, mask=inside, other=0)
    rows = tl.load(slices + 3 * entry + 1, mask=inside, other=0)
    position = tl.load(positions + start, mask=rows > 0, other=0)
    return _chunks((position % CHUNK_ROWS).to(tl.int32), rows)


@triton.jit
def slice_at(slices, positions, index):
    """Of a slice: the row at which its first chunk would begin if it were whole, the slice's first
    row, the row after its last, its slot, and how many chunks it has."""
    start = tl.load(slices + 3 * index)
    rows = tl.load(slices + 3 * index + 1)
    slot = tl.load(slices + 3 * index + 2).to(tl.int64)
    skip = (tl.load(positions + start) % CHUNK_ROWS).to(tl.int32)
    return start - skip, start, start + rows, slot, _chunks(skip, rows)


@triton.jit
def rows_of_chunk(base, start, stop, chunk):
    """Of a slice from ``start`` to ``stop``: its first row in a chunk, and the row after its last
    there."""
    begun = base + chunk * CHUNK_ROWS
    return tl.maximum(begun, start), tl.minimum(begun + CHUNK_ROWS, stop)
