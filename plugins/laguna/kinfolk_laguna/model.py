"""The model: gated attention, full or windowed; dense layers first, then layers with experts."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kinfolk.nn.attention import Attention, SoftplusGate
from kinfolk.nn.context import BuildContext
from kinfolk.nn.decoder import Decoder, PreNormLayer
from kinfolk.nn.feed_forward import experts, mlp, shared_expert
from kinfolk.nn.moe import MoE, Router
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.rope import RotaryEmbedding
from kinfolk.weights.loader import Weights
from kinfolk_laguna.config import LagunaConfig


def build(config: LagunaConfig, weights: Weights, context: BuildContext) -> Decoder:
    rope = RotaryEmbedding(context, config.rope)
    window_rope = rope
    if config.window_rope is not None:
        window_rope = RotaryEmbedding(context, config.window_rope)

    def norm(name: str) -> RMSNorm:
        return RMSNorm(context, weights.tensor(name), config.norm_eps)

    def layer(index: int) -> PreNormLayer:
        block = f"blk.{index}"
        turned = window_rope if config.windowed[index] else rope
        return PreNormLayer(
            norm(f"{block}.attn_norm.weight"),
            _attention(config, weights, context, index, turned, norm),
            norm(f"{block}.ffn_norm.weight"),
            _feed_forward(config, weights, context, index),
        )

    return Decoder(
        context,
        embedding=weights["token_embd.weight"],
        layers=[layer(index) for index in range(config.layers)],
        norm=norm("output_norm.weight"),
        head=weights["output.weight"],
    )


def _attention(
    config: LagunaConfig,
    weights: Weights,
    context: BuildContext,
    layer: int,
    rope: RotaryEmbedding,
    norm: Callable[[str], RMSNorm],
) -> Attention:
    block = f"blk.{layer}"
    return Attention(
        context,
        layer,
        heads=config.heads[layer],
        kv_heads=config.kv_heads,
        dim=config.head_dim,
        q=weights[f"{block}.attn_q.weight"],
        k=weights[f"{block}.attn_k.weight"],
        v=weights[f"{block}.attn_v.weight"],
        output=weights[f"{block}.attn_output.weight"],
        rope=rope,
        q_norm=norm(f"{block}.attn_q_norm.weight"),
        k_norm=norm(f"{block}.attn_k_norm.weight"),
        gate=SoftplusGate(weights[f"{block}.attn_gate.weight"], config.heads[layer]),
    )


def _feed_forward(
    config: LagunaConfig, weights: Weights, context: BuildContext, layer: int
) -> Callable[[torch.Tensor], torch.Tensor]:
    if not config.experts[layer]:
        return mlp(context, weights, layer)
    router = Router(
        weights.tensor(f"blk.{layer}.ffn_gate_inp.weight"),
        score="sigmoid",
        top_k=config.top_k,
        bias=weights.tensor(f"blk.{layer}.exp_probs_b.bias"),
        scale=config.expert_scale,
    )
    store = experts(context, weights, layer)
    return MoE(context, router, store, shared=shared_expert(weights, layer, "_shexp"))
