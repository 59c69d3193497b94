"""Softmax attention over paged keys and values, with optional norms, rotation and output gate."""

from __future__ import annotations

from typing import Any

import torch

from kinfolk.model_api import CommitBatch, StateView
from kinfolk.nn.context import BuildContext
from kinfolk.nn.linear import Linear
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.rope import RotaryEmbedding
from kinfolk.nn.step import Step


class Attention:
    """Grouped-query attention of one layer.

    ``q``, ``k``, ``v`` and ``output`` are the projections; query and key norms work on single
    heads. ``gated_query``: the query projection holds, per head, a query and then a gate whose
    sigmoid multiplies the attention result.
    """

    def __init__(
        self,
        context: BuildContext,
        layer: int,
        *,
        heads: int,
        kv_heads: int,
        dim: int,
        q: Any,
        k: Any,
        v: Any,
        output: Any,
        rope: RotaryEmbedding | None,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
        scale: float | None = None,
        gated_query: bool = False,
    ) -> None:
        self.ops = context.ops
        self.layer = layer
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        self.q, self.k, self.v = (Linear(context.ops, weight) for weight in (q, k, v))
        self.output = Linear(context.ops, output)
        self.q_norm, self.k_norm = q_norm, k_norm
        self.rope = rope
        self.scale = dim**-0.5 if scale is None else scale
        self.gated_query = gated_query

    def __call__(self, x: torch.Tensor, step: Step) -> tuple[torch.Tensor, Any]:
        rows = x.shape[0]
        q, gate = self._query(x)
        k = self.k(x).view(rows, self.kv_heads, self.dim)
        v = self.v(x).view(rows, self.kv_heads, self.dim)
        if self.k_norm is not None:
            k = self.k_norm(k)
        if self.rope is not None:
            q = self.rope(q, step.batch.positions)
            k = self.rope(k, step.batch.positions)
        mixed = self._attend(q, k, v, step).reshape(rows, -1)
        if gate is not None:
            mixed = (mixed.float() * gate.reshape(rows, -1).float().sigmoid()).to(mixed.dtype)
        return self.output(mixed), None

    def commit(self, trace: Any, kept: CommitBatch, view: StateView) -> None:
        """Keys and values of kept rows are moved by the state itself."""

    def _query(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        q = self.q(x).view(x.shape[0], self.heads, -1)
        gate = None
        if self.gated_query:
            q, gate = q[..., : self.dim], q[..., self.dim :]
        return (q if self.q_norm is None else self.q_norm(q)), gate

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: Step
    ) -> torch.Tensor:
        paged = step.view.paged(self.layer)
        for name, value in (("k", k), ("v", v)):
            self.ops.kv_write(
                paged.pool(name), paged.arena(name), value, step.batch, paged.pool_index
            )
        return self.ops.paged_attention(
            q,
            (paged.pool("k"), paged.pool("v")),
            (paged.arena("k"), paged.arena("v")),
            step.batch,
            step.batch.tables[paged.pool_index],
            paged.window,
            self.scale,
        )
