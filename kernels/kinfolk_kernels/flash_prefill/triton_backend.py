"""``flash_prefill`` on the GPU, in four launches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton

from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.flash_prefill.kernels import (
    block_means_kernel,
    block_weights_kernel,
    choose_blocks_kernel,
    kept_attention_kernel,
)
from kinfolk_kernels.flash_prefill.op import (
    ALPHA,
    DENSE_BLOCKS,
    SPARSE_POSITIONS,
    FlashPrefillArguments,
)
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.rows import CHUNK_POSITIONS
from kinfolk_kernels.stored_kind import FLOATS
from kinfolk_kernels.verdict import YES, Verdict, no

SPARSE_DIMS = (64, 128, 256)
"""Dimensions of keys and values that the kernels multiply."""

MOST_SPARSE_BLOCKS = 4096
"""Most blocks of keys: one program chooses among all of them."""


def supports(arguments: FlashPrefillArguments) -> Verdict:
    reason = refuses_device(kept_attention_kernel, arguments.device, arguments.dtype)
    if reason:
        return no(reason)
    for what, kind in (("keys", arguments.keys), ("values", arguments.values)):
        if kind.dtype not in FLOATS:
            return no(f"{what} stored as {kind.format or kind.dtype}")
        if kind.dim not in SPARSE_DIMS:
            return no(f"{what} of {kind.dim} dimensions; it multiplies {SPARSE_DIMS}")
    if arguments.dtype not in FLOATS:
        return no(f"queries of {arguments.dtype}")
    return YES


@dataclass(frozen=True, slots=True)
class SparseScratch:
    """``means`` [N, Hkv, D] of the blocks of keys in the dtype of the query; for each block of
    queries and head the ``weights`` float32 [blocks, heads, N] of the blocks of keys, and those
    that are ``kept``, int32 [blocks, heads, N], of which ``kept_count`` int32 [blocks, heads] are
    real; ``out`` [R, heads, Dv], the result."""

    means: torch.Tensor
    weights: torch.Tensor
    kept: torch.Tensor
    kept_count: torch.Tensor
    out: torch.Tensor

    @classmethod
    def make(cls, q: torch.Tensor, kv_heads: int, value_dim: int, start: int) -> SparseScratch:
        rows, heads, dim = q.shape
        first, last = start // SPARSE_POSITIONS, (start + rows - 1) // SPARSE_POSITIONS
        shape, device = (last - first + 1, heads, last + 1), q.device
        return cls(
            torch.empty(last + 1, kv_heads, dim, dtype=q.dtype, device=device),
            torch.empty(shape, device=device),
            torch.empty(shape, dtype=torch.int32, device=device),
            torch.empty(shape[:2], dtype=torch.int32, device=device),
            torch.empty(rows, heads, value_dim, dtype=q.dtype, device=device),
        )


def flash_prefill(
    arguments: FlashPrefillArguments,
    q: torch.Tensor,
    pools: tuple[torch.Tensor, torch.Tensor],
    blocks: torch.Tensor,
    start: int,
    length: int,
) -> torch.Tensor:
    """See :class:`FlashPrefillArguments`. Raises :class:`ValueError` for a text of more than
    ``MOST_SPARSE_BLOCKS`` blocks."""
    if length > MOST_SPARSE_BLOCKS * SPARSE_POSITIONS:
        raise ValueError(f"{length} positions are more than {MOST_SPARSE_BLOCKS} blocks")
    if q.stride(-1) != 1:
        q = q.contiguous()
    scratch = SparseScratch.make(q, arguments.keys.heads, arguments.values.dim, start)
    for launch in launches(arguments, q, pools, blocks, start, length, scratch):
        launch.run()
    return scratch.out


def launches(
    arguments: FlashPrefillArguments,
    q: torch.Tensor,
    pools: tuple[torch.Tensor, torch.Tensor],
    blocks: torch.Tensor,
    start: int,
    length: int,
    scratch: SparseScratch,
) -> Iterator[Launch]:
    """The launches that fill ``scratch``; heads of a block must be contiguous."""
    rows, heads, dim = q.shape
    keys, kv_heads = pools[0], arguments.keys.heads
    group, seen, factor = heads // kv_heads, start + rows, arguments.scale * math.log2(math.e)
    query_blocks, _, count = scratch.weights.shape
    yield Launch(
        block_means_kernel,
        (count, kv_heads),
        {
            "k_ptr": keys,
            "k_block": keys.stride(0),
            "blocks": blocks,
            "means_ptr": scratch.means,
            "seen": seen,
        },
        {"KV_HEADS": kv_heads, "DIM": dim},
    )
    query = {"q_ptr": q, "q_row": q.stride(0), "q_head": q.stride(1)}
    tile = 32 if _is_narrow(q) else 64
    yield Launch(
        block_weights_kernel,
        (query_blocks, heads, triton.cdiv(count, tile)),
        {
            **query,
            "means_ptr": scratch.means,
            "weights_ptr": scratch.weights,
            "start": start,
            "rows": rows,
            "count": count,
            "factor": factor,
        },
        {"KV_HEADS": kv_heads, "GROUP": group, "DIM": dim, "M": tile, "N": tile},
    )
    yield Launch(
        choose_blocks_kernel,
        (query_blocks, heads),
        {
            "weights_ptr": scratch.weights,
            "kept_ptr": scratch.kept,
            "kept_count": scratch.kept_count,
            "first_block": start // SPARSE_POSITIONS,
            "count": count,
            "last_blocks": -(-length // SPARSE_POSITIONS) - DENSE_BLOCKS,
            "log2_alpha": math.log2(ALPHA),
        },
        {"N": max(16, triton.next_power_of_2(count))},
    )
    yield _attention(arguments, query, pools, blocks, start, scratch)


def _attention(
    arguments: FlashPrefillArguments,
    query: dict[str, Any],
    pools: tuple[torch.Tensor, torch.Tensor],
    blocks: torch.Tensor,
    start: int,
    scratch: SparseScratch,
) -> Launch:
    """The launch that attends to the blocks that were chosen."""
    keys, values = pools
    query_blocks, heads, count = scratch.weights.shape
    narrow = _is_narrow(query["q_ptr"])
    height = 32 if narrow else 128
    return Launch(
        kept_attention_kernel,
        (query_blocks * (SPARSE_POSITIONS // height), heads),
        {
            **query,
            "k_ptr": keys,
            "k_block": keys.stride(0),
            "v_ptr": values,
            "v_block": values.stride(0),
            "blocks": blocks,
            "kept_ptr": scratch.kept,
            "kept_count": scratch.kept_count,
            "out_ptr": scratch.out,
            "start": start,
            "rows": scratch.out.shape[0],
            "count": count,
            "factor": arguments.scale * math.log2(math.e),
        },
        {
            "GROUP": heads // arguments.keys.heads,
            "DIM": arguments.keys.dim,
            "VALUE_DIM": arguments.values.dim,
            "M": height,
            "PARTS": SPARSE_POSITIONS // CHUNK_POSITIONS,
        },
        warps=4 if narrow else 8,
        stages=2,
    )


def _is_narrow(q: torch.Tensor) -> bool:
    """Whether tiles are small: products in float32 do not run on tensor cores, and these and long
    vectors need more registers."""
    return q.element_size() == 4 or q.shape[-1] > 128
