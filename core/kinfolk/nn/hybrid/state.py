"""The state plan of a hybrid decoder. Torch-free."""

from __future__ import annotations

from kinfolk.nn.hybrid.config import HybridConfig
from kinfolk.plans import Codec, LayerState, Paged, Recurrent, RecurrentTensor, Section, StatePlan


def hybrid_state(config: HybridConfig, codec: Codec) -> StatePlan:
    """Keys and values of attention layers; delta matrices and convolution inputs of the others."""
    kv = attention_state(config, codec)
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


def attention_state(config: HybridConfig, codec: Codec) -> Paged:
    """Keys and values of one layer, of the trunk or of the block behind it."""
    sections = (Section(name, config.kv_heads, config.head_dim, codec) for name in ("k", "v"))
    return Paged(tuple(sections))
