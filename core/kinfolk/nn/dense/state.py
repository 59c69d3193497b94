"""The state plan of a dense decoder. Torch-free."""

from __future__ import annotations

from kinfolk.hookspecs import hookimpl
from kinfolk.nn.dense.config import DenseConfig
from kinfolk.plans import Codec, Paged, Section, StateLimits, StatePlan


def dense_state(config: DenseConfig, limits: StateLimits) -> StatePlan:
    """Keys and values of every layer, in the codec of ``limits``."""
    codec = limits.codec or Codec("bf16")
    sections = tuple(Section(name, config.kv_heads, config.head_dim, codec) for name in ("k", "v"))
    return StatePlan((Paged(sections),) * config.layers)


class DenseHooks:
    """The model hooks of a dense family; the core's defaults serve the others."""

    @hookimpl
    def allocate_cache(self, config: DenseConfig, limits: StateLimits) -> StatePlan:
        return dense_state(config, limits)
