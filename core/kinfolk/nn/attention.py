"""Softmax attention over paged keys and values, with optional norms, rotation and output gate."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from kinfolk.model_api import CommitBatch, StateView
from kinfolk.nn.context import BuildContext
from kinfolk.nn.linear import Linear, Linears
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.queries import QueryKind, QueryWriter
from kinfolk.nn.rope import RotaryEmbedding
from kinfolk.nn.step import Step
from kinfolk_kernels.int8_rows import with_int8
from kinfolk_kernels.paged_attention.epilogue import Activation, Epilogue
from kinfolk_kernels.paged_attention.op import GATED_ATTENTION, GatedAttentionArguments
from kinfolk_kernels.qk_rope_write.head_norm import HeadNorm
from kinfolk_kernels.qk_rope_write.op import QK_ROPE_WRITE, QKRopeWriteArguments
from kinfolk_kernels.stored_kind import StoredKind


class OutputGate(Protocol):
    """A gate on the attention result, computed from W x, where x is the layer's input.

    :class:`Attention` applies ``activation`` to the result of a call.
    """

    weight: Any
    activation: Activation

    def __call__(self, projected: torch.Tensor) -> torch.Tensor:
        """W x [R, out] -> [R, heads, 1 or dim]."""
        ...


class SoftplusGate:
    """softplus(W x), one number for each head or for each element."""

    activation: Activation = "softplus"

    def __init__(self, weight: Any, heads: int) -> None:
        self.weight = weight
        self.heads = heads

    def __call__(self, projected: torch.Tensor) -> torch.Tensor:
        return _heads(projected, self.heads)


class Attention:
    """Grouped-query attention of one layer.

    ``q``, ``k``, ``v`` and ``output`` are the projections. Without ``v`` the values are the key
    projection, before norm and rotation. Without ``k`` the layer shares the keys and values of the
    layer that owns its state, and writes none. Norms are per head. ``gated_query``: the query
    projection holds, per head, a query and then a gate whose sigmoid multiplies the attention
    result; ``gate`` is a gate with a projection of its own. ``scale`` multiplies the scores,
    1 / sqrt(dim) by default.
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
        self.layer = layer
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        self.has_key, self.has_value = k is not None, v is not None
        weights = (q, k, v, None if gate is None else gate.weight)
        self.inputs = Linears(context, (weight for weight in weights if weight is not None))
        self.output = Linear(context, output)
        self.rope_tables = None if rope is None else (rope.cos, rope.sin)
        self.gated_query, self.gate = gated_query, gate
        state = context.state.paged(layer)
        sections = (state.section(name) for name in ("k", "v"))
        keys, values = (StoredKind.named(s.heads, s.dim, s.codec.format) for s in sections)
        # Queries and keys are multiplied in one dtype: that of the keys unless they are quantised.
        query_dtype = keys.dtype or context.dtype
        self.qk_rope_write = context.ops.bind(
            QK_ROPE_WRITE,
            QKRopeWriteArguments(
                norms=(_of_heads(q_norm), _of_heads(k_norm), _of_heads(v_norm)),
                rope_tables=self.rope_tables,
                keys=keys,
                values=values,
                has_values=self.has_value or not self.has_key,
                pool_index=context.state.windows.index(state.window),
                dtype=query_dtype,
                device=context.device,
            ),
        )
        scale = dim**-0.5 if scale is None else scale
        self.query_writer = None
        if context.scored is not None and layer in context.scored.layers:
            context.scored.kinds[layer] = QueryKind(heads, query_dtype, scale)
            self.query_writer = QueryWriter(context.ops, layer, query_dtype, context.device)
        arguments = GatedAttentionArguments(
            heads=heads,
            keys=keys,
            values=values,
            window=state.window,
            scale=scale,
            dtype=query_dtype,
            device=context.device,
        )
        self.gated_attention = context.ops.bind(GATED_ATTENTION, arguments)
        if context.reading is not None:
            self.gated_attention = context.reading.attention(
                self.gated_attention, arguments, self.rope_tables, context.ops
            )

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
        query = self.qk_rope_write(q, k, v, pools, arenas, step.batch)
        drafted = None
        if self.query_writer is not None:
            drafted = self.query_writer(query, step.batch, step.view)
        mixed = self.gated_attention(
            query,
            pools,
            arenas,
            step.batch,
            step.batch.tables[paged.pool_index],
            Epilogue(gate, factor, x.dtype, activation=activation),
        )
        return self.output(with_int8(mixed.values.flatten(1), mixed.int8)), drafted

    def commit(self, trace: Any, kept: CommitBatch, view: StateView) -> None:
        """Keep the last queries, if the layer does. Nothing is advanced: the engine copies keys and
        values of kept rows itself."""
        if self.query_writer is not None and trace is not None:
            self.query_writer.commit(trace, kept, view)


def _heads(projected: torch.Tensor, heads: int) -> torch.Tensor:
    """[R, heads * n] -> [R, heads, n]."""
    return projected.view(projected.shape[0], heads, -1)


def _of_heads(norm: RMSNorm | None) -> HeadNorm | None:
    return None if norm is None else HeadNorm(norm.weight, norm.eps)
