"""The op ``flash_prefill``."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from kinfolk_kernels.codecs import Stored, numbers
from kinfolk_kernels.op import Op
from kinfolk_kernels.stored_kind import StoredKind

SPARSE_POSITIONS = 128
"""Positions of a block, of queries or of keys."""

FIRST_BLOCKS, NEAR_BLOCKS, DENSE_BLOCKS = 2, 4, 2
"""Blocks of keys that every block of queries attends to: the first ones, and those up to its own;
and blocks of queries at the end of a text that attend to all keys."""

ALPHA = 0.12
"""A block of keys is left out if its share is below this part of the largest one."""


@dataclass(frozen=True, slots=True)
class FlashPrefillArguments:
    """Attention of a slice of one text to those blocks of its keys that seem to matter (Fan et al.,
    2026, arXiv 2603.06199).

    ``heads`` query heads share the key heads evenly; ``scale`` multiplies products. Operands: q [R,
    heads, D] in ``dtype``, the rows at positions ``start`` to ``start + R - 1`` of a text of
    ``length`` positions; pools of keys and values [blocks, Hkv, 64, D] of plain numbers; ``blocks``
    int32 [n], the blocks of its chunks from the first one on, which hold all keys up to the last
    row. Result: [R, heads, Dv] in ``dtype``.

    Positions are grouped into blocks of ``SPARSE_POSITIONS``. For a head and a block of queries,
    the weight of a block of keys is the sum of exp(q . mean of its keys) over those of its rows
    that see all of the block. A block is attended to if its weight is at least ``ALPHA`` times the
    largest one of the blocks up to that of the queries, or as ``FIRST_BLOCKS``, ``NEAR_BLOCKS`` and
    ``DENSE_BLOCKS`` say. A row never sees a key behind it.
    """

    heads: int
    keys: StoredKind
    values: StoredKind
    scale: float
    dtype: torch.dtype
    device: torch.device


def kept_blocks(
    q: torch.Tensor, means: torch.Tensor, start: int, length: int, scale: float
) -> list[list[list[int]]]:
    """For each block of queries and each head, the blocks of keys that are attended to; of q [R,
    heads, D] and the means [N, Hkv, D] of the blocks of keys so far."""
    rows, heads, _ = q.shape
    seen = start + rows
    group = heads // means.shape[1]
    blocks = -(-length // SPARSE_POSITIONS)
    kept: list[list[list[int]]] = []
    for m in range(start // SPARSE_POSITIONS, -(-seen // SPARSE_POSITIONS)):
        first = max(m * SPARSE_POSITIONS, start)
        stop = min((m + 1) * SPARSE_POSITIONS, seen)
        of_block: list[list[int]] = []
        for head in range(heads):
            weights = []
            for n in range(m + 1):
                last = min((n + 1) * SPARSE_POSITIONS, seen) - 1
                visible = q[max(first, last) - start : stop - start, head].float()
                products = visible @ means[n, head // group].float() * scale
                weights.append(
                    float(products.double().logsumexp(0)) if len(products) else -math.inf
                )
            bar = max(weights) + math.log(ALPHA)
            of_block.append(
                [
                    n
                    for n in range(m + 1)
                    if n < FIRST_BLOCKS
                    or m - n < NEAR_BLOCKS
                    or m >= blocks - DENSE_BLOCKS
                    or weights[n] >= bar
                ]
            )
        kept.append(of_block)
    return kept


def block_means(keys: torch.Tensor) -> torch.Tensor:
    """Keys [n, Hkv, D] -> the means float32 [N, Hkv, D] of their blocks; the last may be short."""
    return torch.stack([block.float().mean(0) for block in keys.split(SPARSE_POSITIONS)])


def flash_prefill(
    arguments: FlashPrefillArguments,
    q: torch.Tensor,
    pools: tuple[Stored, Stored],
    blocks: torch.Tensor,
    start: int,
    length: int,
) -> torch.Tensor:
    """See :class:`FlashPrefillArguments`."""
    seen = start + q.shape[0]
    keys, values = (
        numbers(pool, lambda plane: plane[blocks.long()]).transpose(1, 2).flatten(0, 1)[:seen]
        for pool in pools
    )
    # The means are rounded as the products' other operand is.
    means = block_means(keys).to(q.dtype)
    kept = kept_blocks(q, means, start, length, arguments.scale)
    group = arguments.heads // keys.shape[1]
    out = torch.empty(*q.shape[:2], values.shape[-1], dtype=q.dtype, device=q.device)
    places = torch.arange(seen, device=q.device)
    for row in range(q.shape[0]):
        m = (start + row) // SPARSE_POSITIONS - start // SPARSE_POSITIONS
        for head in range(arguments.heads):
            wanted = torch.tensor(kept[m][head], device=q.device)
            visible = torch.isin(places // SPARSE_POSITIONS, wanted) & (places <= start + row)
            k, v = keys[visible, head // group].float(), values[visible, head // group].float()
            shares = (k @ q[row, head].float() * arguments.scale).softmax(0)
            out[row, head] = (shares @ v).to(q.dtype)
    return out


FLASH_PREFILL = Op("flash_prefill", FlashPrefillArguments, flash_prefill)
