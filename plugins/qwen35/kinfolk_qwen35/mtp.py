"""The block behind the layers, for the drafter ``mtp``. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kinfolk.gguf.inventory import Inventory
from kinfolk.nn.feed_forward import mlp_weights
from kinfolk.nn.hybrid.state import attention_state
from kinfolk.nn.hybrid.weights import mtp_weights
from kinfolk.plans import WeightSpec
from kinfolk.spec.mtp.block import MTPBlock, TrainedLayer
from kinfolk.spec.mtp.hybrid import trained_layer
from kinfolk_qwen35.config import Qwen35Config


def _weights(config: Qwen35Config, inventory: Inventory) -> Iterator[WeightSpec]:
    yield from mtp_weights(config, inventory)
    yield from mlp_weights(config.layers, config.width, config.feed_forward)


def _trained(config: Qwen35Config) -> TrainedLayer:
    return trained_layer(config, "kinfolk.train.mtp.feed_forward:gated_mlp")


BLOCK: Final = MTPBlock(attention_state, _weights, "kinfolk_qwen35.model:build_mtp_layer", _trained)
