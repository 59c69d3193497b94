"""Queries, keys and values of one text, in blocks of a pool."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass
class SparseCase:
    """Dense ``q`` [length, heads, D], ``k`` and ``v`` [length, Hkv, D], and the same keys and
    values in ``pools``, whose other places hold NaN."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    pools: tuple[torch.Tensor, torch.Tensor]
    blocks: torch.Tensor

    @classmethod
    def paged(cls, q, k, v, seed=0):
        generator = torch.Generator().manual_seed(seed)
        count = -(-len(k) // 64)
        blocks = torch.randperm(count + 3, generator=generator)[:count]
        # A block holds its keys and behind them its values.
        data = torch.full((count + 3, 2, k.shape[1], 64, k.shape[2]), torch.nan).to(k.dtype)
        for pool, numbers in ((data[:, 0], k), (data[:, 1], v)):
            for chunk, part in enumerate(numbers.split(64)):
                pool[blocks[chunk], :, : len(part)] = part.transpose(0, 1)
        return cls(q, k, v, (data[:, 0], data[:, 1]), blocks.int())


def sparse_case(length, heads=4, kv_heads=2, dim=64, seed=0, spread=2.0, dtype=torch.float32):
    """Keys of a block of 128 have a direction in common, so that blocks differ in weight."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator)

    blocks = -(-length // 128)
    common = spread * random(blocks, kv_heads, dim).repeat_interleave(128, 0)[:length]
    k = random(length, kv_heads, dim) + common
    q = random(length, heads, dim) + common.repeat_interleave(heads // kv_heads, 1).roll(128, 0)
    v = random(length, kv_heads, dim)
    return SparseCase.paged(q.to(dtype), k.to(dtype), v.to(dtype), seed)


def dense_attention(case, scale, visible):
    """float64; ``visible`` bool [heads, length, length] says which keys a row sees."""
    group = case.q.shape[1] // case.k.shape[1]
    k, v = (x.double().repeat_interleave(group, 1) for x in (case.k, case.v))
    products = torch.einsum("qhd,khd->hqk", case.q.double(), k) * scale
    shares = products.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", shares, v)
