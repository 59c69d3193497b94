"""The model: a hybrid trunk with a mixture of experts in every layer."""

from __future__ import annotations

from kinfolk.nn.context import BuildContext
from kinfolk.nn.decoder import Decoder
from kinfolk.nn.feed_forward import experts, shared_expert
from kinfolk.nn.hybrid.trunk import build_hybrid
from kinfolk.nn.moe import MoE, Router
from kinfolk.weights.loader import Weights
from kinfolk_qwen35moe.config import Qwen35MoeConfig


def build(config: Qwen35MoeConfig, weights: Weights, context: BuildContext) -> Decoder:
    def feed_forward(layer: int) -> MoE:
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

    return build_hybrid(config, weights, context, feed_forward)
