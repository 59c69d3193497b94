"""The weight plan, for the variants of files that converters write."""

from __future__ import annotations

from collections.abc import Iterator

from kinfolk.gguf.inventory import Inventory
from kinfolk.nn.feed_forward import expert_weights, mlp_weights
from kinfolk.nn.hybrid.weights import ignored_tensors, trunk_weights
from kinfolk.plans import WeightPlan, WeightSpec
from kinfolk_qwen35moe.config import Qwen35MoeConfig


def weight_plan(config: Qwen35MoeConfig, inventory: Inventory) -> WeightPlan:
    weights = list(trunk_weights(config, inventory))
    for layer in range(config.layers):
        weights += feed_forward_weights(config, inventory, layer, config.experts[layer])
    return WeightPlan(tuple(weights), ignored_tensors(config, inventory))


def feed_forward_weights(
    config: Qwen35MoeConfig, inventory: Inventory, layer: int, experts: int
) -> Iterator[WeightSpec]:
    """The feed-forward weights of a layer; the router and the shared expert's gate stay float32."""
    width = config.width
    yield WeightSpec(f"blk.{layer}.ffn_gate_inp.weight", (experts, width), "vector")
    yield WeightSpec(f"blk.{layer}.ffn_gate_inp_shexp.weight", (width,), "vector")
    yield from expert_weights(inventory, layer, experts, width, config.expert_width[layer])
    yield from mlp_weights(layer, width, config.shared_width, "_shexp")
