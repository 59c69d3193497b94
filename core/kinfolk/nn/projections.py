"""The projections of attention, by the names of their tensors in files."""

from __future__ import annotations

from collections.abc import Iterator

from kinfolk.gguf.inventory import Inventory
from kinfolk.plans import WeightSpec


def projection_weights(
    inventory: Inventory, layer: int, width: int, *, query: int, key: int, value: int
) -> Iterator[WeightSpec]:
    """``attn_{q,k,v}`` of ``query``, ``key`` and ``value`` rows, or these rows of one ``attn_qkv``
    in this order."""
    block = f"blk.{layer}."
    fused = f"{block}attn_qkv.weight"
    start = 0
    for name, rows in (("attn_q", query), ("attn_k", key), ("attn_v", value)):
        shape = (rows, width)
        if fused in inventory:
            span = (start, start + rows)
            yield WeightSpec(f"{block}{name}.weight", shape, source=fused, rows=span)
        else:
            yield WeightSpec(f"{block}{name}.weight", shape)
        start += rows
