"""The part of a model's configuration that the core reads; families add their own fields."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from kinfolk.gguf.metadata import Metadata


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Yarn(Frozen):
    """Context extension of rotary embeddings (Peng et al., 2023), as the file states it."""

    factor: float = Field(gt=0)
    original_context: int = Field(gt=0)
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    magnitude: float | None = None
    """Factor on cosine and sine; ``None`` = the usual one."""

    @property
    def usual_magnitude(self) -> float:
        """0.1 ln(factor) + 1, and 1 for factors below 1."""
        return 0.1 * log(max(self.factor, 1.0)) + 1.0


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

MOST_LAYERS: Final = 1024
"""Several times what any model has: more are a damaged number, for each of which something would be
made before a tensor is missed."""

MOST_EXPERT_SCALE: Final = 1000.0
"""Files state 1 to 3 or so."""


def common_fields(meta: Metadata) -> dict[str, Any]:
    """The fields of :class:`ModelConfig` that all files state alike: all but layers and experts."""
    key = meta.arch_key
    return {
        "architecture": meta.architecture,
        "name": meta.string("general.name", default=meta.architecture),
        "width": meta.integer(key("embedding_length"), minimum=1),
        "vocabulary": vocabulary(meta),
        # A prompt of one token, and one that answers it.
        "context": meta.integer(key("context_length"), minimum=2),
        "norm_eps": meta.number(key("attention.layer_norm_rms_epsilon"), above=0, maximum=1),
    }


def expert_scale(meta: Metadata) -> float:
    """What the weights of a row's experts are multiplied by; 1 if the file does not say."""
    key = meta.arch_key("expert_weights_scale")
    return meta.number(key, default=1.0, above=0, maximum=MOST_EXPERT_SCALE)


def layer_count(meta: Metadata) -> int:
    """The blocks of the file. Read it before anything that has an entry for each."""
    return meta.integer(meta.arch_key("block_count"), minimum=1, maximum=MOST_LAYERS)


def vocabulary(meta: Metadata) -> int:
    """Rows of the token table: the tokens of the file, or a stated size where there are none."""
    if "tokenizer.ggml.tokens" in meta:
        return len(meta.strings("tokenizer.ggml.tokens"))
    return meta.integer(meta.arch_key("vocab_size"), minimum=1)
