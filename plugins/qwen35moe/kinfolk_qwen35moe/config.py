"""Configuration of the mixture-of-experts models of this family."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from kinfolk.config import expert_scale
from kinfolk.gguf.metadata import Metadata
from kinfolk.nn.hybrid.config import HybridConfig, read_hybrid

_SOFTMAX = 1


class Qwen35MoeConfig(HybridConfig):
    """A hybrid decoder in which a row uses ``top_k`` experts of ``expert_width`` channels, stated
    for each layer and for the blocks behind them, and a shared expert of ``shared_width``
    channels."""

    top_k: int = Field(gt=0)
    expert_width: tuple[int, ...]
    shared_width: int = Field(gt=0)
    expert_scale: float = 1.0

    mtp_block: ClassVar[str] = "kinfolk_qwen35moe.mtp:BLOCK"


def read_config(meta: Metadata) -> Qwen35MoeConfig:
    """The configuration of a file. Raises :class:`ModelFormatError` or
    :class:`UnsupportedModelError` naming the key."""
    key = meta.arch_key
    hybrid = read_hybrid(meta)
    layers, blocks = hybrid["layers"], hybrid["layers"] + hybrid["draft_layers"]
    experts = meta.integer(key("expert_count"), minimum=1)
    top_k = meta.integer(key("expert_used_count"), minimum=1, maximum=experts)
    gating = meta.integer(key("expert_gating_func"), default=_SOFTMAX, minimum=0)
    if gating != _SOFTMAX:
        raise meta.unsupported(
            f"key {key('expert_gating_func')!r} is {gating}, not {_SOFTMAX} (softmax)"
        )
    if not meta.boolean(key("norm_top_k_prob"), default=True):
        raise meta.unsupported(
            f"key {key('norm_top_k_prob')!r} is false; the weights of a token's experts always sum "
            "to one here"
        )
    width = key("expert_feed_forward_length")
    widths = meta.per_layer(width, blocks, minimum=0)
    if 0 in widths[:layers]:
        raise meta.fail(f"key {width!r} is 0, expected at least 1 where a layer has experts", width)
    return Qwen35MoeConfig(
        **hybrid,
        experts=(experts,) * layers,
        top_k=top_k,
        expert_width=widths,
        shared_width=meta.integer(key("expert_shared_feed_forward_length"), minimum=1),
        expert_scale=expert_scale(meta),
    )
