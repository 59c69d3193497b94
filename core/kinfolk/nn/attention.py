"""Softmax attention over paged keys and values, with optional norms, rotation and output gate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kinfolk.model_api import CommitBatch, StateView
from kinfolk.nn.context import BuildContext
from kinfolk.nn.linear import Linear
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.rope import RotaryEmbedding
from kinfolk.nn.step import Step

OutputGate = Callable[[torch.Tensor], torch.Tensor]
"""Layer input [R, width] -> factor of the attention result, [R, heads, 1 or dim]."""


class SoftplusGate:
    """softplus(W x), one number a head or one an element."""

    def __init__(self, context: BuildContext, weight: Any, heads: int) -> None:
        self.linear = Linear(context.ops, weight)
        self.heads = heads

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        factor = torch.nn.functional.softplus(self.linear(x).float())
        return factor.view(x.shape[0], self.heads, -1)


class Attention:
    """Grouped-query attention of one layer.

    ``q``, ``k``, ``v`` and ``output`` are the projections. Without ``v`` the values are the key
    projection, before norm and rotation. Without ``k`` the layer reads what the layer that owns its
    state has written. Norms work on single heads. ``gated_query``: the query projection holds, per
    head, a query and then a gate whose sigmoid multiplies the attention result; ``gate`` is a gate
    of its own. ``scale`` multiplies the scores, 1 / sqrt(dim) if it is not given.
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
        k: Any | None,
        v: Any | None,
        output: Any,
        rope: RotaryEmbedding | None,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
        v_norm: RMSNorm | None = None,
        scale: float | None = None,
        gated_query: bool = False,
        gate: OutputGate | None = None,
    ) -> None:
        self.ops = context.ops
        self.layer = layer
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        self.q = Linear(context.ops, q)
        self.k = None if k is None else Linear(context.ops, k)
        self.v = None if v is None else Linear(context.ops, v)
        self.output = Linear(context.ops, output)
        self.q_norm, self.k_norm, self.v_norm = q_norm, k_norm, v_norm
        self.rope = rope
        self.scale = dim**-0.5 if scale is None else scale
        self.gated_query, self.gate = gated_query, gate

    def __call__(self, x: torch.Tensor, step: Step) -> tuple[torch.Tensor, Any]:
        q, factor = self._query(x, step)
        if self.k is not None:
            self._write(x, self.k, step)
        mixed = self._attend(q, step)
        if factor is not None:
            mixed = (mixed.float() * factor).to(mixed.dtype)
        return self.output(mixed.reshape(x.shape[0], -1)), None

    def commit(self, trace: Any, kept: CommitBatch, view: StateView) -> None:
        """Keys and values of kept rows are moved by the state itself."""

    def _query(self, x: torch.Tensor, step: Step) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Query [R, heads, dim], normed and rotated, and the factor of the result."""
        q = self.q(x).view(x.shape[0], self.heads, -1)
        factor = None if self.gate is None else self.gate(x)
        if self.gated_query:
            factor = q[..., self.dim :].float().sigmoid()
            q = q[..., : self.dim]
        q = q if self.q_norm is None else self.q_norm(q)
        return (q if self.rope is None else self.rope(q, step.batch.positions)), factor

    def _write(self, x: torch.Tensor, project: Linear, step: Step) -> None:
        """Store the keys and values of the rows."""
        shape = (x.shape[0], self.kv_heads, self.dim)
        k = project(x).view(shape)
        v = k if self.v is None else self.v(x).view(shape)
        if self.k_norm is not None:
            k = self.k_norm(k)
        if self.v_norm is not None:
            v = self.v_norm(v)
        if self.rope is not None:
            k = self.rope(k, step.batch.positions)
        paged = step.view.paged(self.layer)
        for name, value in (("k", k), ("v", v)):
            pool, arena = paged.pool(name), paged.arena(name)
            self.ops.kv_write(pool, arena, value, step.batch, paged.pool_index)

    def _attend(self, q: torch.Tensor, step: Step) -> torch.Tensor:
        paged = step.view.paged(self.layer)
        return self.ops.paged_attention(
            q,
            (paged.pool("k"), paged.pool("v")),
            (paged.arena("k"), paged.arena("v")),
            step.batch,
            step.batch.tables[paged.pool_index],
            paged.window,
            self.scale,
        )
