"""The weight plan of a dense hybrid decoder. Torch-free."""

from __future__ import annotations

from kinfolk.gguf.inventory import Inventory
from kinfolk.nn.feed_forward import mlp_weights
from kinfolk.nn.hybrid.weights import ignored_tensors, trunk_weights
from kinfolk.plans import WeightPlan
from kinfolk_qwen35.config import Qwen35Config


def weight_plan(config: Qwen35Config, inventory: Inventory) -> WeightPlan:
    """The weights of the model, and the ignored tensors of the file with the reason."""
    weights = list(trunk_weights(config, inventory))
    for layer in range(config.layers):
        weights += mlp_weights(layer, config.width, config.feed_forward)
    return WeightPlan(tuple(weights), ignored_tensors(config, inventory))
