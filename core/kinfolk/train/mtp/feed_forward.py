"""Feed-forward networks with gradients, by the names of their tensors in a block.

``weight(name)`` is the tensor ``blk.N.<name>.weight``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import linear, silu

Weight = Callable[[str], torch.Tensor]


def gated_mlp(config: Any, weight: Weight, x: torch.Tensor, suffix: str = "") -> torch.Tensor:
    """``ffn_{gate,up,down}<suffix>``: W_down (silu(W_gate x) * W_up x), [n, width]."""
    gate, up, down = (weight(f"ffn_{part}{suffix}") for part in ("gate", "up", "down"))
    return linear(silu(linear(x, gate)) * linear(x, up), down)


def mixture(weight: Weight, x: torch.Tensor, *, top_k: int, scale: float) -> torch.Tensor:
    """The routed experts ``ffn_{gate,up,down}_exps`` of ``ffn_gate_inp``, [n, width]: the scores
    are a softmax over all experts, and those of the chosen ones are made to sum to ``scale``.

    The router learns by the weights of the experts that it chose; no loss balances their use.
    """
    with torch.autocast(x.device.type, enabled=False):  # as in the runtime: a choice is exact
        scores = linear(x, weight("ffn_gate_inp")).softmax(-1)
    share, chosen = scores.topk(top_k, -1)
    share = share / share.sum(-1, keepdim=True) * scale
    gate, up, down = (weight(f"ffn_{part}_exps") for part in ("gate", "up", "down"))
    parts = []
    for expert in range(gate.shape[0]):
        row, place = (chosen == expert).nonzero(as_tuple=True)
        if not len(row):
            continue
        given = x[row]
        found = linear(silu(linear(given, gate[expert])) * linear(given, up[expert]), down[expert])
        parts.append((row, found.float() * share[row, place, None]))
    rows, results = (torch.cat(each) for each in zip(*parts, strict=True))
    return torch.zeros_like(x, dtype=torch.float32).index_add(0, rows, results)
