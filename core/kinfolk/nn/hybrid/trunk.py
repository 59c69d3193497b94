"""Builds the layers of a hybrid decoder."""

from __future__ import annotations

from collections.abc import Callable

import torch

from kinfolk.errors import ModelFormatError
from kinfolk.nn.attention import Attention
from kinfolk.nn.context import BuildContext
from kinfolk.nn.decoder import Decoder, PreNormLayer
from kinfolk.nn.gated_delta import DeltaShape, DeltaWeights, GatedDeltaNet
from kinfolk.nn.hybrid.config import HybridConfig
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.rope import RotaryEmbedding
from kinfolk.nn.step import Mixer
from kinfolk.weights.loader import Weights

FeedForward = Callable[[torch.Tensor], torch.Tensor]


def build_hybrid(
    config: HybridConfig,
    weights: Weights,
    context: BuildContext,
    feed_forward: Callable[[int], FeedForward],
) -> Decoder:
    """The decoder; ``feed_forward(layer)`` returns the family's feed-forward network of a layer.

    Raises :class:`ModelFormatError` for decay rates that are not stored as -exp(A).
    """
    rope = RotaryEmbedding(context, config.rope)

    def norm(name: str) -> RMSNorm:
        return RMSNorm(context, weights.tensor(name), config.norm_eps)

    layers = []
    for layer, recurrent in enumerate(config.recurrent):
        mixer: Mixer = (
            _delta(config, weights, context, layer)
            if recurrent
            else attention(config, weights, context, f"blk.{layer}", layer, rope, norm)
        )
        layers.append(
            PreNormLayer(
                norm(f"blk.{layer}.attn_norm.weight"),
                mixer,
                norm(f"blk.{layer}.post_attention_norm.weight"),
                feed_forward(layer),
            )
        )
    return Decoder(
        context,
        embedding=weights["token_embd.weight"],
        layers=layers,
        norm=norm("output_norm.weight"),
        head=weights["output.weight"],
    )


def _delta(
    config: HybridConfig, weights: Weights, context: BuildContext, layer: int
) -> GatedDeltaNet:
    block = f"blk.{layer}"
    a = weights.tensor(f"{block}.ssm_a")
    if bool((a > 0).any()):
        raise ModelFormatError(
            f"tensor '{block}.ssm_a' has positive entries: decay rates must be stored as -exp(A). "
            "Convert the model again",
            key=f"{block}.ssm_a",
        )
    return GatedDeltaNet(
        context,
        layer,
        delta_shape(config),
        DeltaWeights(
            qkv=weights[f"{block}.attn_qkv.weight"],
            z=weights[f"{block}.attn_gate.weight"],
            alpha=weights[f"{block}.ssm_alpha.weight"],
            beta=weights[f"{block}.ssm_beta.weight"],
            conv=weights.tensor(f"{block}.ssm_conv1d.weight"),
            a=a,
            dt=weights.tensor(f"{block}.ssm_dt.bias"),
            norm=weights.tensor(f"{block}.ssm_norm.weight"),
            output=weights[f"{block}.ssm_out.weight"],
        ),
        config.norm_eps,
    )


def attention(
    config: HybridConfig,
    weights: Weights,
    context: BuildContext,
    block: str,
    layer: int,
    rope: RotaryEmbedding,
    norm: Callable[[str], RMSNorm],
) -> Attention:
    """The attention of a ``block`` of the file, with the state of ``layer``."""
    return Attention(
        context,
        layer,
        heads=config.heads,
        kv_heads=config.kv_heads,
        dim=config.head_dim,
        q=weights[f"{block}.attn_q.weight"],
        k=weights[f"{block}.attn_k.weight"],
        v=weights[f"{block}.attn_v.weight"],
        output=weights[f"{block}.attn_output.weight"],
        rope=rope,
        q_norm=norm(f"{block}.attn_q_norm.weight"),
        k_norm=norm(f"{block}.attn_k_norm.weight"),
        gated_query=True,
    )


def delta_shape(config: HybridConfig) -> DeltaShape:
    return DeltaShape(
        config.key_heads, config.value_heads, config.state_dim, config.state_dim, config.conv
    )
