"""The layer of a hybrid decoder's block for multi-token prediction: one of full attention."""

from __future__ import annotations

from typing import Any

from kinfolk.nn.context import BuildContext
from kinfolk.nn.decoder import PreNormLayer
from kinfolk.nn.hybrid.config import HybridConfig
from kinfolk.nn.hybrid.trunk import FeedForward, attention
from kinfolk.nn.key_values import KeyValueWriter, StoringLayer
from kinfolk.nn.linear import Linears
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.rope import RotaryEmbedding
from kinfolk.weights.loader import Weights


def build_mtp_layer(
    config: HybridConfig,
    weights: Weights,
    context: BuildContext,
    layer: int,
    feed_forward: FeedForward,
) -> StoringLayer:
    """The layer behind the trunk, with the state of ``layer``."""
    block, rope = f"blk.{config.layers}", RotaryEmbedding(context, config.rope)

    keys_values: list[Any] = [weights[f"{block}.attn_{name}.weight"] for name in ("k", "v")]

    def norm(name: str) -> RMSNorm:
        return RMSNorm(context, weights.tensor(name), config.norm_eps)

    return StoringLayer(
        PreNormLayer(
            norm(f"{block}.attn_norm.weight"),
            attention(config, weights, context, block, layer, rope, norm),
            norm(f"{block}.post_attention_norm.weight"),
            feed_forward,
        ),
        Linears(context, keys_values),
        KeyValueWriter(
            context,
            layer,
            dim=config.head_dim,
            k_norm=norm(f"{block}.attn_k_norm.weight"),
            rope=rope,
        ),
    )
