"""The weight plan, for the variants of files that converters write."""

from __future__ import annotations

from collections.abc import Iterator

from kinfolk.errors import ModelFormatError
from kinfolk.gguf.inventory import Inventory
from kinfolk.nn.feed_forward import expert_weights, mlp_weights
from kinfolk.nn.projections import projection_weights
from kinfolk.plans import WeightPlan, WeightSpec
from kinfolk_laguna.config import LagunaConfig


def weight_plan(config: LagunaConfig, inventory: Inventory) -> WeightPlan:
    """The weights of the model. Raises :class:`ModelFormatError` for a gate that is neither per
    head nor per element."""
    weights = list(_around_layers(config, inventory))
    for layer in range(config.layers):
        weights += _attention(config, inventory, layer)
        weights += _feed_forward(config, inventory, layer)
    return WeightPlan(tuple(weights))


def _around_layers(config: LagunaConfig, inventory: Inventory) -> Iterator[WeightSpec]:
    table = (config.vocabulary, config.width)
    yield WeightSpec("token_embd.weight", table, "embedding")
    tied = "output.weight" not in inventory
    yield WeightSpec("output.weight", table, source="token_embd.weight" if tied else "")
    yield WeightSpec("output_norm.weight", (config.width,), "vector")


def _attention(config: LagunaConfig, inventory: Inventory, layer: int) -> Iterator[WeightSpec]:
    block, width, dim = f"blk.{layer}.", config.width, config.head_dim
    query, kv = config.heads[layer] * dim, config.kv_heads * dim
    yield WeightSpec(f"{block}attn_norm.weight", (width,), "vector")
    yield from projection_weights(inventory, layer, width, query=query, key=kv, value=kv)
    yield WeightSpec(f"{block}attn_output.weight", (width, query))
    yield WeightSpec(f"{block}attn_q_norm.weight", (dim,), "vector")
    yield WeightSpec(f"{block}attn_k_norm.weight", (dim,), "vector")
    gates = _gates(config, inventory, layer)
    yield WeightSpec(f"{block}attn_gate.weight", (gates, width))


def _gates(config: LagunaConfig, inventory: Inventory, layer: int) -> int:
    """Rows of the gate: one for each head or for each element, which only the tensor tells."""
    name, heads = f"blk.{layer}.attn_gate.weight", config.heads[layer]
    choices = (heads, heads * config.head_dim)
    info = inventory.get(name)
    if info is None:
        return heads  # the loader reports it with all that is missing
    if info.shape[0] not in choices:
        raise ModelFormatError(
            f"tensor {name!r} has {info.shape[0]} rows; expected {choices[0]} (one a head) or "
            f"{choices[1]} (one an element)",
            path=info.path,
            key=name,
        )
    return info.shape[0]


def _feed_forward(config: LagunaConfig, inventory: Inventory, layer: int) -> Iterator[WeightSpec]:
    """The feed-forward weights of a layer; router and correction bias stay in float32."""
    block, width, experts = f"blk.{layer}.", config.width, config.experts[layer]
    yield WeightSpec(f"{block}ffn_norm.weight", (width,), "vector")
    if not experts:
        yield from mlp_weights(layer, width, config.feed_forward)
        return
    yield WeightSpec(f"{block}ffn_gate_inp.weight", (experts, width), "vector")
    yield WeightSpec(f"{block}exp_probs_b.bias", (experts,), "vector")
    yield from expert_weights(inventory, layer, experts, width, config.expert_width[layer])
    yield from mlp_weights(layer, width, config.shared_width, "_shexp")
