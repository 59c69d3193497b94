"""How often the rows of a step chose each expert: what the kernels that copy records begin with."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

UNROLLED_PAIRS = tl.constexpr(16)
"""Up to so many pairs each thread compares all of them with its experts. That needs no exchange
between threads, which takes longer for one row than comparing does."""

FEWEST_BINS = 32
"""A warp counts in so many bins at least."""

COUNTED_PAIRS = 2048
"""Most pairs that a program counts at a time: eight for each of its threads."""


def pairs_at_once(pairs: int) -> int:
    """How many of ``pairs`` a program counts at a time."""
    most = int(triton.next_power_of_2(max(1, pairs)))
    return most if most <= UNROLLED_PAIRS.value else min(COUNTED_PAIRS, max(FEWEST_BINS, most))


def bins(experts: int) -> int:
    """The length of an array of ``experts`` numbers in the kernels that count."""
    return max(FEWEST_BINS, int(triton.next_power_of_2(experts)))


@triton.jit
def uses_of(ids_ptr, pairs, real, SIZE: tl.constexpr, PAIRS: tl.constexpr):
    """int32 [SIZE]: how many of the first ``real`` of ``pairs`` ids are each expert. The loads do
    not wait for ``real``."""
    count = tl.zeros([SIZE], tl.int32)
    if PAIRS <= UNROLLED_PAIRS:
        e = tl.arange(0, SIZE)
        for q in tl.static_range(PAIRS):
            expert = tl.load(ids_ptr + q, mask=q < pairs, other=SIZE).to(tl.int32)
            count += ((e == expert) & (q < real)).to(tl.int32)
    else:
        for start in tl.range(0, pairs, PAIRS):
            q = start + tl.arange(0, PAIRS)
            there = q < pairs
            expert = tl.load(ids_ptr + q, mask=there, other=0).to(tl.int32)
            count += tl.histogram(expert, SIZE, mask=there & (q < real))
    return count
