"""The block behind the layers, for the drafter ``mtp``. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kinfolk.gguf.inventory import Inventory
from kinfolk.nn.hybrid.state import attention_state
from kinfolk.nn.hybrid.weights import mtp_weights
from kinfolk.plans import WeightSpec
from kinfolk.spec.mtp.block import MTPBlock, TrainedLayer
from kinfolk.spec.mtp.hybrid import trained_layer
from kinfolk_qwen35moe.config import Qwen35MoeConfig
from kinfolk_qwen35moe.weights import feed_forward_weights


def _weights(config: Qwen35MoeConfig, inventory: Inventory) -> Iterator[WeightSpec]:
    yield from mtp_weights(config, inventory)
    yield from feed_forward_weights(config, inventory, config.layers, config.experts[-1])


def _trained(config: Qwen35MoeConfig) -> TrainedLayer:
    return trained_layer(config, "kinfolk_qwen35moe.training:feed_forward")


BLOCK: Final = MTPBlock(
    attention_state, _weights, "kinfolk_qwen35moe.model:build_mtp_layer", _trained
)
