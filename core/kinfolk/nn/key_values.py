"""Keys and values of rows that are stored without attending to anything."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk.model_api import StateView, StepBatch
from kinfolk.nn.context import BuildContext
from kinfolk.nn.decoder import PreNormLayer
from kinfolk.nn.linear import Linears
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.rope import RotaryEmbedding
from kinfolk_kernels.qk_rope_write.head_norm import HeadNorm
from kinfolk_kernels.qk_rope_write.op import QK_ROPE_WRITE, QKRopeWriteArguments
from kinfolk_kernels.stored_kind import StoredKind


class KeyValueWriter:
    """Writes the keys, normed and rotated, and the values of one layer to its state."""

    def __init__(
        self,
        context: BuildContext,
        layer: int,
        *,
        dim: int,
        k_norm: RMSNorm,
        rope: RotaryEmbedding,
    ) -> None:
        self.layer, self.dim = layer, dim
        state = context.state.paged(layer)
        keys, values = (
            StoredKind.named(section.heads, section.dim, section.codec.format)
            for section in (state.section("k"), state.section("v"))
        )
        self.write_rows = context.ops.bind(
            QK_ROPE_WRITE,
            QKRopeWriteArguments(
                norms=(None, HeadNorm(k_norm.weight, k_norm.eps), None),
                rope_tables=(rope.cos, rope.sin),
                keys=keys,
                values=values,
                has_values=True,
                pool_index=context.state.windows.index(state.window),
                dtype=keys.dtype or context.dtype,
                device=context.device,
            ),
        )

    def write(
        self, keys: torch.Tensor, values: torch.Tensor, batch: StepBatch, view: StateView
    ) -> None:
        """Store keys and values [R, heads * dim] of all rows."""
        count, paged = keys.shape[0], view.paged(self.layer)
        pools, arenas = ((part("k"), part("v")) for part in (paged.pool, paged.arena))
        no_queries = keys.new_empty(count, 0, self.dim)
        k, v = (each.view(count, -1, self.dim) for each in (keys, values))
        self.write_rows(no_queries, k, v, pools, arenas, batch)


@dataclass(frozen=True, slots=True)
class StoringLayer:
    """A decoder layer of full attention whose keys and values can be stored without running it:
    ``keys_values`` projects the layer's normed input to both."""

    layer: PreNormLayer
    keys_values: Linears
    writer: KeyValueWriter

    def store(self, x: torch.Tensor, batch: StepBatch, view: StateView) -> None:
        """Write the keys and values of the layer's inputs ``x`` float32 [R, width]."""
        keys, values = self.keys_values(self.layer.mixer_norm(x))
        self.writer.write(keys, values, batch, view)
