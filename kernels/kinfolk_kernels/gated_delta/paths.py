"""Which rows of a drafted segment another one has seen: its path, a bit for each row."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def on_path(path, places):
    """[rows, places]: whether the row at each place of the segment is on each row's path."""
    return ((path[:, None] >> places[None, :].to(tl.int64)) & 1) != 0


@triton.jit
def decay_of(g_ptr, path, places, g_row, count):
    """float64 [rows]: the sum of decays over the ``places`` that are on each row's path."""
    g = tl.load(g_ptr + places * g_row, mask=places < count, other=0.0).to(tl.float64)
    return tl.sum(tl.where(on_path(path, places), g[None, :], 0.0), 1)
