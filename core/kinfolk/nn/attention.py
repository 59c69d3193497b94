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
from kinfolk_kernels.int8_rows import with_int8
from kinfolk_kernels.paged_attention.epilogue import Activation, Epilogue
from kinfolk_kernels.qk_rope_write.head_norm import HeadNorm


class OutputGate(Protocol):
    """A factor of the attention result: a function of W x, where x is the layer's input.

    Attention itself applies ``activation`` to the result of a call.
    """

    weight: Any
    activation: Activation

    def __call__(self, projected: torch.Tensor) -> torch.Tensor:
        """W x [R, out] -> [R, heads, 1 or dim]."""
        ...


class SoftplusGate:
    """softplus(W x), one number a head or one an element."""

    activation: Activation = "softplus"

    def __init__(self, weight: Any, heads: int) -> None:
        self.weight = weight
        self.heads = heads

    def __call__(self, projected: torch.Tensor) -> torch.Tensor:
        return _heads(projected, self.heads)


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
        self.inputs = Linears(context, (weight for weight in weights if weight is not None))
        self.output = Linear(context, output)
        self.norms = _of_heads(q_norm), _of_heads(k_norm), _of_heads(v_norm)
        self.rope_tables = None if rope is None else (rope.cos, rope.sin)
        self.scale = dim**-0.5 if scale is None else scale
        self.gated_query, self.gate = gated_query, gate

    def __call__(self, x: torch.Tensor, step: Step) -> tuple[torch.Tensor, Any]:
        projected = iter(self.inputs(x))
        q = _heads(next(projected), self.heads)
        k = _heads(next(projected), self.kv_heads) if self.has_key else None
        v = _heads(next(projected), self.kv_heads) if self.has_value else None
        factor, gate = None, None
        activation: Activation = "identity"
        if self.gate is not None:
            factor, activation = self.gate(next(projected)), self.gate.activation
        if self.gated_query:
            q, gate = q[..., : self.dim], q[..., self.dim :]
        paged = step.view.paged(self.layer)
        pools, arenas = ((part("k"), part("v")) for part in (paged.pool, paged.arena))
        query = self.ops.qk_rope_write(
            q,
            k,
            v,
            self.norms,
            self.rope_tables,
            pools,
            arenas,
            step.batch,
            paged.pool_index,
            1.0,
            # Products of queries and keys have one type; coded keys take that of the query.
            pools[0].dtype if isinstance(pools[0], torch.Tensor) else x.dtype,
        )
        mixed = self.ops.gated_attention(
            query,
            pools,
            arenas,
            step.batch,
            step.batch.tables[paged.pool_index],
            paged.window,
            self.scale,
            Epilogue(gate, factor, x.dtype, activation=activation),
        )
        return self.output(with_int8(mixed.values.flatten(1), mixed.int8)), None

    def commit(self, trace: Any, kept: CommitBatch, view: StateView) -> None:
        """Keys and values of kept rows are moved by the state itself."""


def _heads(projected: torch.Tensor, heads: int) -> torch.Tensor:
    """[R, heads * n] -> [R, heads, n]."""
    return projected.view(projected.shape[0], heads, -1)


def _of_heads(norm: RMSNorm | None) -> HeadNorm | None:
    return None if norm is None else HeadNorm(norm.weight, norm.eps)
