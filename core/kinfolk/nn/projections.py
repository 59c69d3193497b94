"""The projections of attention and of delta nets, by the names of their tensors in files."""

from __future__ import annotations

from collections.abc import Iterator

from kinfolk.gguf.inventory import Inventory
from kinfolk.plans import WeightSpec
from kinfolk.weights.loader import Weight, Weights

_INPUTS = ("attn_qkv", "attn_q", "attn_k", "attn_v", "attn_gate", "ssm_alpha", "ssm_beta")


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


def input_matrices(weights: Weights, layer: int) -> list[Weight]:
    """The matrices that ``layer`` multiplies its input with; none behind the last layer."""
    names = [f"blk.{layer}.{name}.weight" for name in _INPUTS]
    return [weights[name] for name in names if name in weights]
