"""Softmax attention over paged keys and values, with optional norms, rotation and output gate."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from kinfolk.model_api import CommitBatch, StateView
from kinfolk.nn.context import BuildContext
from kinfolk.nn.linear import Linear, Linears
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.rope import RotaryEmbedding
from kinfolk.nn.step import Step


class OutputGate(Protocol):
    """A factor of the attention result: a function of W x, where x is the layer's input."""

    weight: Any

    def __call__(self, projected: torch.Tensor) -> torch.Tensor:
        """W x [R, out] -> [R, heads, 1 or dim]."""
        ...


class SoftplusGate:
    """softplus(W x), one number a head or one an element."""

    def __init__(self, weight: Any, heads: int) -> None:
        self.weight = weight
        self.heads = heads

    def __call__(self, projected: torch.Tensor) -> torch.Tensor:
        factor = torch.nn.functional.softplus(projected.float())
        return factor.view(projected.shape[0], self.heads, -1)


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
        self.has_key, self.has_value = k is not None, v is not None
        weights = (q, k, v, None if gate is None else gate.weight)
        self.inputs = Linears(context.ops, (weight for weight in weights if weight is not None))
        self.output = Linear(context.ops, output)
        self.q_norm, self.k_norm, self.v_norm = q_norm, k_norm, v_norm
        self.rope = rope
        self.scale = dim**-0.5 if scale is None else scale
        self.gated_query, self.gate = gated_query, gate

    def __call__(self, x: torch.Tensor, step: Step) -> tuple[torch.Tensor, Any]:
        projected = iter(self.inputs(x))
        q = next(projected)
        k = next(projected) if self.has_key else None
        v = next(projected) if self.has_value else k
        factor = None if self.gate is None else self.gate(next(projected))
        q, factor = self._query(q, factor, step)
        if k is not None and v is not None:
            self._write(k, v, step)
        mixed = self._attend(q, step)
        if factor is not None:
            mixed = (mixed.float() * factor).to(mixed.dtype)
        return self.output(mixed.reshape(x.shape[0], -1)), None

    def commit(self, trace: Any, kept: CommitBatch, view: StateView) -> None:
        """Keys and values of kept rows are moved by the state itself."""

    def _query(
        self, projected: torch.Tensor, factor: torch.Tensor | None, step: Step
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Query [R, heads, dim], normed and rotated, and the factor of the result."""
        q = projected.view(projected.shape[0], self.heads, -1)
        if self.gated_query:
            factor = q[..., self.dim :].float().sigmoid()
            q = q[..., : self.dim]
        q = q if self.q_norm is None else self.q_norm(q)
        return (q if self.rope is None else self.rope(q, step.batch.positions)), factor

    def _write(self, k: torch.Tensor, v: torch.Tensor, step: Step) -> None:
        """Store the keys and values of the rows."""
        shape = (k.shape[0], self.kv_heads, self.dim)
        k, v = k.view(shape), v.view(shape)
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
