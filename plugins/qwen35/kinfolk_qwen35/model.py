"""The dense model: a hybrid trunk with gated feed-forward networks."""

from __future__ import annotations

from kinfolk.nn.context import BuildContext
from kinfolk.nn.decoder import Decoder
from kinfolk.nn.feed_forward import mlp
from kinfolk.nn.hybrid import mtp
from kinfolk.nn.hybrid.trunk import build_hybrid
from kinfolk.nn.key_values import StoringLayer
from kinfolk.weights.loader import Weights
from kinfolk_qwen35.config import Qwen35Config


def build(config: Qwen35Config, weights: Weights, context: BuildContext) -> Decoder:
    return build_hybrid(config, weights, context, lambda layer: mlp(context, weights, layer))


def build_mtp_layer(
    config: Qwen35Config, weights: Weights, context: BuildContext, layer: int
) -> StoringLayer:
    """The layer behind the trunk, with the state of ``layer``."""
    feed_forward = mlp(context, weights, config.layers)
    return mtp.build_mtp_layer(config, weights, context, layer, feed_forward)
