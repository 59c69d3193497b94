"""Model configuration: the fields that the core reads; families add their own."""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from kinfolk.gguf.metadata import Metadata


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Yarn(Frozen):
    """YaRN context extension of rotary embeddings (Peng et al., 2023), as in the file."""

    factor: float = Field(gt=0)
    original_context: int = Field(gt=0)
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    magnitude: float | None = None
    """Factor on cosine and sine; ``None`` = ``usual_magnitude``."""

    @property
    def usual_magnitude(self) -> float:
        """0.1 ln(factor) + 1, and 1 for factors below 1."""
        return 0.1 * log(max(self.factor, 1.0)) + 1.0


class Rope(Frozen):
    """Rotary embedding of the first ``dims`` dimensions of a head, paired as (i, i + dims / 2)."""

    dims: int = Field(gt=0, multiple_of=2)
    base: float = Field(gt=0)
    yarn: Yarn | None = None
    linear_factor: float = 1.0


class ModelConfig(Frozen):
    """Configuration of any model. ``layers`` counts the blocks of the trunk.

    ``experts`` [layers] is the number of experts of each layer, 0 for a dense layer; empty = all
    layers are dense.
    """

    architecture: str
    name: str = ""
    layers: int = Field(gt=0)
    width: int = Field(gt=0)
    vocabulary: int = Field(gt=0)
    context: int = Field(gt=0)
    norm_eps: float = Field(gt=0)
    experts: tuple[int, ...] = ()

    mtp_block: ClassVar[str] = ""
    """A reference to the family's :class:`kinfolk.spec.mtp.block.MTPBlock`, by which the drafter
    ``mtp`` runs the block behind the trunk; empty = the family has none."""


Activation = Literal["silu", "gelu_tanh"]

MOST_LAYERS: Final = 1024
"""Several times the depth of any model. A damaged count is refused here, before per-layer objects
are allocated for it."""

MAX_EXPERT_SCALE: Final = 1000.0
"""Published files have values from 1 to about 3."""


def common_fields(meta: Metadata) -> dict[str, Any]:
    """The fields of :class:`ModelConfig` whose keys all architectures share: all but ``layers`` and
    ``experts``."""
    key = meta.arch_key
    return {
        "architecture": meta.architecture,
        "name": meta.string("general.name", default=meta.architecture),
        "width": meta.integer(key("embedding_length"), minimum=1),
        "vocabulary": vocabulary(meta),
        # One token of prompt and one of answer.
        "context": meta.integer(key("context_length"), minimum=2),
        "norm_eps": meta.number(key("attention.layer_norm_rms_epsilon"), above=0, maximum=1),
    }


def expert_scale(meta: Metadata) -> float:
    """The factor on the routing weights of a row's experts; 1 if the file has no key for it."""
    key = meta.arch_key("expert_weights_scale")
    return meta.number(key, default=1.0, above=0, maximum=MAX_EXPERT_SCALE)


def layer_count(meta: Metadata) -> int:
    """The number of blocks in the file. Read it before any per-layer key: it is range-checked."""
    return meta.integer(meta.arch_key("block_count"), minimum=1, maximum=MOST_LAYERS)


def vocabulary(meta: Metadata) -> int:
    """Rows of the token embedding: the number of listed tokens, else the key ``vocab_size``."""
    if "tokenizer.ggml.tokens" in meta:
        return len(meta.strings("tokenizer.ggml.tokens"))
    return meta.integer(meta.arch_key("vocab_size"), minimum=1)
