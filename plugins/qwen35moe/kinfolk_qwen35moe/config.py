"""Configuration of the mixture-of-experts models of this family."""

from __future__ import annotations

from pydantic import Field

from kinfolk.errors import UnsupportedModelError
from kinfolk.gguf.metadata import Metadata
from kinfolk.nn.hybrid.config import HybridConfig, read_hybrid

_SOFTMAX = 1


class Qwen35MoeConfig(HybridConfig):
    """A hybrid decoder in which a row visits ``top_k`` experts of ``expert_width`` channels, one
    width a layer, and one shared by all rows of ``shared_width``."""

    top_k: int = Field(gt=0)
    expert_width: tuple[int, ...]
    shared_width: int = Field(gt=0)
    expert_scale: float = 1.0


def read_config(meta: Metadata) -> Qwen35MoeConfig:
    """Raises ModelFormatError or UnsupportedModelError."""
    key = meta.arch_key
    hybrid = read_hybrid(meta)
    layers, blocks = hybrid["layers"], hybrid["layers"] + hybrid["draft_layers"]
    experts = meta.integer(key("expert_count"), minimum=1)
    top_k = meta.integer(key("expert_used_count"), minimum=1)
    if top_k > experts:
        raise meta.fail(f"{top_k} of {experts} experts for a token", key("expert_used_count"))
    if meta.integer(key("expert_gating_func"), default=_SOFTMAX) != _SOFTMAX:
        raise UnsupportedModelError(
            f"{meta.path}: {key('expert_gating_func')} is not {_SOFTMAX} (softmax)"
        )
    if not meta.boolean(key("norm_top_k_prob"), default=True):
        raise UnsupportedModelError(
            f"{meta.path}: {key('norm_top_k_prob')} is false; the weights of a token's experts "
            "always sum to one here"
        )
    widths = meta.per_layer(key("expert_feed_forward_length"), blocks)
    return Qwen35MoeConfig(
        **hybrid,
        experts=(experts,) * layers,
        top_k=top_k,
        expert_width=widths[:layers],
        shared_width=meta.integer(key("expert_shared_feed_forward_length"), minimum=1),
        expert_scale=meta.number(key("expert_weights_scale"), default=1.0),
    )
