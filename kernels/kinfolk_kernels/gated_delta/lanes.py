"""A tile of a head's state [values, keys], eight lanes to a row, without any shared memory.

Rows and lanes form one dimension, which forces Triton to give a row to lanes of one warp. A tile is
a tuple of parts of 32 keys. A lane has four keys of each part, so that it loads 16 bytes at once. A
vector of keys is a tuple of the same form, with the same numbers in each row.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.dependent import fetch_ahead

LANES = tl.constexpr(8)
"""Lanes of a row."""

PART_KEYS = tl.constexpr(32)
"""Keys of a part."""


@triton.jit
def lane_values(BV: tl.constexpr):
    """[BV * LANES]: the row of each lane in the tile."""
    return tl.arange(0, BV * LANES) // LANES


@triton.jit
def lane_keys(BV: tl.constexpr):
    """[BV * LANES, 4]: the keys of each lane in a part."""
    return tl.arange(0, BV * LANES)[:, None] % LANES * 4 + tl.arange(0, 4)[None, :]


@triton.jit
def load_parts(at, PARTS: tl.constexpr):
    """A tuple of PARTS parts, float32, of which ``at`` are pointers to the first."""
    found = ()
    for i in tl.static_range(PARTS):
        found = found + (tl.load(at + i * PART_KEYS).to(tl.float32),)  # type: ignore[assignment]
    return found


@triton.jit
def load_among(index, count, at):
    """Numbers at pointers, or zeros unless ``index`` is below ``count``."""
    return tl.load(at, mask=tl.zeros(at.shape, tl.int32) + index < count, other=0.0)


@triton.jit
def load_parts_among(index, count, at, PARTS: tl.constexpr):
    """Parts, or zeros unless ``index`` is below ``count``."""
    found = ()
    for i in tl.static_range(PARTS):
        part = load_among(index, count, at + i * PART_KEYS)
        found = found + (part.to(tl.float32),)  # type: ignore[assignment]
    return found


@triton.jit
def store_parts(at, parts, PARTS: tl.constexpr):
    for i in tl.static_range(PARTS):
        tl.store(at + i * PART_KEYS, parts[i])


@triton.jit
def fetch_numbers(at, NUMBERS: tl.constexpr):
    """Prefetch ``NUMBERS`` float32."""
    fetch_ahead(at + tl.arange(0, NUMBERS // 32) * 32)
