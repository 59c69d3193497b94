"""Builds the model from layers of ``kinfolk.nn``."""

from __future__ import annotations

from kinfolk.nn.attention import Attention
from kinfolk.nn.context import BuildContext
from kinfolk.nn.decoder import Decoder, PreNormLayer
from kinfolk.nn.dense.config import DenseConfig
from kinfolk.nn.mlp import GatedMLP
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.rope import RotaryEmbedding
from kinfolk.weights.loader import Weights


def build(config: DenseConfig, weights: Weights, context: BuildContext) -> Decoder:
    rope = RotaryEmbedding(context, config.rope, weights.optional("rope_freqs.weight"))

    def norm(name: str) -> RMSNorm:
        return RMSNorm(context, weights.tensor(f"{name}.weight"), config.norm_eps)

    def layer(index: int) -> PreNormLayer:
        block = f"blk.{index}"
        attention = Attention(
            context,
            index,
            heads=config.heads,
            kv_heads=config.kv_heads,
            dim=config.head_dim,
            q=weights[f"{block}.attn_q.weight"],
            k=weights[f"{block}.attn_k.weight"],
            v=weights[f"{block}.attn_v.weight"],
            output=weights[f"{block}.attn_output.weight"],
            rope=rope,
            q_norm=norm(f"{block}.attn_q_norm"),
            k_norm=norm(f"{block}.attn_k_norm"),
        )
        feed_forward = GatedMLP(
            context,
            gate=weights[f"{block}.ffn_gate.weight"],
            up=weights[f"{block}.ffn_up.weight"],
            down=weights[f"{block}.ffn_down.weight"],
        )
        return PreNormLayer(
            norm(f"{block}.attn_norm"), attention, norm(f"{block}.ffn_norm"), feed_forward
        )

    return Decoder(
        context,
        embedding=weights["token_embd.weight"],
        layers=[layer(index) for index in range(config.layers)],
        norm=norm("output_norm"),
        head=weights["output.weight"],
    )
