"""The state plan of a hybrid decoder. Torch-free."""

from __future__ import annotations

from kinfolk.nn.hybrid.config import HybridConfig
from kinfolk.plans import Codec, LayerState, Paged, Recurrent, RecurrentTensor, Section, StatePlan


def hybrid_state(config: HybridConfig, codec: Codec) -> StatePlan:
    """Keys and values of attention layers; delta matrices and convolution inputs of the others."""
    kv = Paged(
        (
            Section("k", config.kv_heads, config.head_dim, codec),
            Section("v", config.kv_heads, config.head_dim, codec),
        )
    )
    inner = config.value_heads * config.state_dim
    channels = 2 * config.key_heads * config.state_dim + inner
    delta = Recurrent(
        (
            RecurrentTensor("delta", (config.value_heads, config.state_dim, config.state_dim)),
            RecurrentTensor("conv", (config.conv - 1, channels)),
        )
    )
    layers: list[LayerState] = [delta if recurrent else kv for recurrent in config.recurrent]
    return StatePlan(tuple(layers))
