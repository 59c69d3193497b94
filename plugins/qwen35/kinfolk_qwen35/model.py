"""The dense model: a hybrid trunk with GatedMLP."""

from __future__ import annotations

from kinfolk.nn.context import BuildContext
from kinfolk.nn.decoder import Decoder
from kinfolk.nn.hybrid.trunk import build_hybrid
from kinfolk.nn.mlp import GatedMLP
from kinfolk.weights.loader import Weights
from kinfolk_qwen35.config import Qwen35Config


def build(config: Qwen35Config, weights: Weights, context: BuildContext) -> Decoder:
    def feed_forward(layer: int) -> GatedMLP:
        block = f"blk.{layer}"
        return GatedMLP(
            context,
            gate=weights[f"{block}.ffn_gate.weight"],
            up=weights[f"{block}.ffn_up.weight"],
            down=weights[f"{block}.ffn_down.weight"],
        )

    return build_hybrid(config, weights, context, feed_forward)
