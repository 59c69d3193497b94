"""The model: a hybrid trunk with a mixture of experts in every layer."""

from __future__ import annotations

from dataclasses import replace

from kinfolk.nn.context import BuildContext
from kinfolk.nn.decoder import Decoder
from kinfolk.nn.feed_forward import experts, shared_expert
from kinfolk.nn.hybrid import mtp
from kinfolk.nn.hybrid.trunk import build_hybrid
from kinfolk.nn.key_values import StoringLayer
from kinfolk.nn.moe import MoE, Router
from kinfolk.weights.loader import Weights
from kinfolk_qwen35moe.config import Qwen35MoeConfig


def build(config: Qwen35MoeConfig, weights: Weights, context: BuildContext) -> Decoder:
    return build_hybrid(
        config, weights, context, lambda layer: _mixture(config, weights, context, layer)
    )


def build_mtp_layer(
    config: Qwen35MoeConfig, weights: Weights, context: BuildContext, layer: int
) -> StoringLayer:
    """The layer behind the trunk, with the state of ``layer``."""
    # Hooks place the experts of the trunk; those of this layer are all on the device.
    mixture = _mixture(config, weights, replace(context, placement=None), config.layers)
    return mtp.build_mtp_layer(config, weights, context, layer, mixture)


def _mixture(config: Qwen35MoeConfig, weights: Weights, context: BuildContext, layer: int) -> MoE:
    return MoE(
        context,
        Router(
            weights.tensor(f"blk.{layer}.ffn_gate_inp.weight"),
            score="softmax",
            top_k=config.top_k,
            scale=config.expert_scale,
        ),
        experts(context, weights, layer),
        shared=shared_expert(
            weights, layer, "_shexp", weights.tensor(f"blk.{layer}.ffn_gate_inp_shexp.weight")
        ),
    )
