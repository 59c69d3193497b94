"""``experts`` in torch, expert by expert, in tiles of a fixed number of rows.

The rounding of a product may depend on its shape. So all products of a step have the same shape:
one row if the step has one row, else tiles of 16 rows padded with zeros.
"""

from __future__ import annotations

import torch

from kinfolk_kernels.act_and_mul.op import product
from kinfolk_kernels.experts.op import (
    ExpertsArguments,
    Stack,
    add_shared,
    of_expert,
    real_rows,
)
from kinfolk_kernels.linear.torch_backend import product as linear

EXPERT_TILE_ROWS = 16


def experts(
    arguments: ExpertsArguments[Stack], x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """See :class:`ExpertsArguments`."""
    activation, shared = arguments.activation, arguments.shared
    rows, top_k = ids.shape
    tile = 1 if rows == 1 else EXPERT_TILE_ROWS
    pairs = torch.zeros(rows * top_k, x.shape[1], device=x.device)
    here = real_rows(arguments.rows, rows)
    real = ids[:here].flatten()
    order = real.argsort(stable=True)
    counts = real.bincount(minlength=arguments.count).tolist()
    start = 0
    for expert, count in enumerate(counts):
        if count == 0:
            continue
        mine = order[start : start + count]
        start += count
        matrices = of_expert(arguments, expert, x.dtype)
        if matrices is None:
            continue
        w_gate, w_up, w_down = matrices
        for part in torch.split(mine, tile):
            block = x.new_zeros(tile, x.shape[1])
            block[: part.shape[0]] = x[part // top_k]
            inner = product(activation, block @ w_gate.T, block @ w_up.T)
            pairs[part] = (inner @ w_down.T)[: part.shape[0]].float()
    results = pairs.view(rows, top_k, -1)
    # The weights of padding rows may be anything.
    weights = torch.cat([weights[:here], weights.new_zeros(rows - here, top_k)])
    out = weights[:, 0, None] * results[:, 0]
    for k in range(1, top_k):
        out = out + weights[:, k, None] * results[:, k]
    if shared is None:
        return out
    inner = product(activation, linear(x, shared.gate), linear(x, shared.up))
    return add_shared(out, linear(inner, shared.down), x, shared.shared_gate)
