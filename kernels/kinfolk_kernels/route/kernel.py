"""The kernel that chooses the experts of a row."""

# mypy: ignore-errors

from __future__ import annotations

import triton
import triton.language as tl

from kinfolk_kernels.curves import sigmoid


@triton.jit(do_not_specialize=["scale"])
def route_kernel(
    logits_ptr,
    bias_ptr,
    expert_scale_ptr,
    ids_ptr,
    weights_ptr,
    logits_row,
    scale,
    EXPERTS: tl.constexpr,
    SIZE: tl.constexpr,
    TOP_K: tl.constexpr,
    PLACES: tl.constexpr,
    SOFTMAX: tl.constexpr,
    BIASED: tl.constexpr,
    SCALED: tl.constexpr,
):
    """Grid (rows,). Scores that are no numbers come last: every id is an expert."""
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, SIZE)
    real = e < EXPERTS
    logits = tl.load(logits_ptr + row * logits_row + e, mask=real, other=float("-inf"))
    if SOFTMAX:
        powers = tl.exp(logits - tl.max(logits, 0))
        scores = powers / tl.sum(powers, 0)
    else:
        scores = sigmoid(logits)
    rank = scores
    if BIASED:
        rank = scores + tl.load(bias_ptr + e, mask=real, other=0.0)
    rank = tl.where(rank == rank, rank, float("-inf"))
    free = real
    place = tl.arange(0, PLACES)
    ids = tl.zeros([PLACES], tl.int32)
    weights = tl.zeros([PLACES], tl.float32)
    total = 0.0
    for k in tl.static_range(TOP_K):
        best = tl.max(tl.where(free, rank, float("-inf")), 0)
        chosen = tl.min(tl.where(free & (rank == best), e, SIZE), 0)
        free = free & (e != chosen)
        weight = tl.sum(tl.where(e == chosen, scores, 0.0), 0)
        total += weight
        ids = tl.where(place == k, chosen, ids)
        weights = tl.where(place == k, weight, weights)
    weights = weights / total * scale
    if SCALED:
        weights = weights * tl.load(expert_scale_ptr + ids)
    out = row * TOP_K + place
    tl.store(ids_ptr + out, ids.to(tl.int64), mask=place < TOP_K)
    tl.store(weights_ptr + out, weights, mask=place < TOP_K)
