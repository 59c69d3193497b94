"""The part of a model's configuration that the core reads; families add their own fields."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Yarn(Frozen):
    """Context extension of rotary embeddings (Peng et al., 2023), as the file states it."""

    factor: float = Field(gt=0)
    original_context: int = Field(gt=0)
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    magnitude: float | None = None
    """Factor on cosine and sine; ``None`` = 0.1 ln(factor) + 1."""


class Rope(Frozen):
    """Rotary embedding of the first ``dims`` dimensions of a head, in half-split pairs."""

    dims: int = Field(gt=0, multiple_of=2)
    base: float = Field(gt=0)
    yarn: Yarn | None = None
    linear_factor: float = 1.0


class ModelConfig(Frozen):
    """What every model has. ``layers`` counts the blocks of the trunk.

    ``experts`` holds the number of experts of each layer, 0 where the layer has none; empty = none
    anywhere.
    """

    architecture: str
    name: str = ""
    layers: int = Field(gt=0)
    width: int = Field(gt=0)
    vocabulary: int = Field(gt=0)
    context: int = Field(gt=0)
    norm_eps: float = Field(gt=0)
    experts: tuple[int, ...] = ()


Activation = Literal["silu", "gelu_tanh"]
