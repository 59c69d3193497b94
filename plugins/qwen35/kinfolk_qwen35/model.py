"""The dense model: a hybrid trunk with gated feed-forward networks."""

from __future__ import annotations

from kinfolk.nn.context import BuildContext
from kinfolk.nn.decoder import Decoder
from kinfolk.nn.feed_forward import mlp
from kinfolk.nn.hybrid.trunk import build_hybrid
from kinfolk.weights.loader import Weights
from kinfolk_qwen35.config import Qwen35Config


def build(config: Qwen35Config, weights: Weights, context: BuildContext) -> Decoder:
    return build_hybrid(config, weights, context, lambda layer: mlp(context, weights, layer))
