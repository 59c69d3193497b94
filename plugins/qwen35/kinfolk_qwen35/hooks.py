"""The model hooks of the family."""

from __future__ import annotations

from kinfolk import hookimpl
from kinfolk.nn.hybrid.state import hybrid_state
from kinfolk.plans import Codec, StateLimits, StatePlan
from kinfolk_qwen35.config import Qwen35Config


class Qwen35Hooks:
    """Paged keys and values on attention layers, constant-size state on the others."""

    @hookimpl
    def allocate_cache(self, config: Qwen35Config, limits: StateLimits) -> StatePlan:
        return hybrid_state(config, limits.codec or Codec("bf16"))
