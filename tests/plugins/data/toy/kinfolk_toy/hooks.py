"""Model hooks of the toy family, and a policy."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from kinfolk import hookimpl
from kinfolk.model_api import ModelInfo
from kinfolk.plans import Codec, Paged, Section, StateLimits, StatePlan


class ToyHooks:
    def __init__(self, config: Any) -> None:
        self.config = config

    @hookimpl
    def allocate_cache(self, config: Any, limits: StateLimits) -> StatePlan:
        codec = limits.codec or Codec()
        return StatePlan((Paged((Section("k", 2, 8, codec), Section("v", 2, 8, codec))),))


class Frugal:
    """Halves the window of the plan, whatever the family says."""

    def __init__(self, info: ModelInfo) -> None:
        self.info = info

    @hookimpl(wrapper=True)
    def allocate_cache(self) -> Generator[None, StatePlan, StatePlan]:
        plan = yield
        return StatePlan(
            tuple(
                Paged(layer.sections, window=self.info.context // 2)
                if isinstance(layer, Paged)
                else layer
                for layer in plan.layers
            )
        )
