"""Configuration of a DFlash drafter. Torch-free."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kinfolk.config import Activation, Frozen, Rope

GateKind = Literal["none", "head", "element"]


class BlockLayer(Frozen):
    """``window``: how many positions a row sees, ``None`` = all. ``causal``: a row of the block
    does not see later ones."""

    window: int | None = None
    causal: bool = False


class Convolution(Frozen):
    """Grouped dynamic convolutions of DFlash 2: ``taps`` rows, one kernel for ``group``
    channels."""

    taps: int = Field(gt=0)
    group: int = Field(gt=0)


class Selector(Frozen):
    """The candidate selector of DFlash 2: it scores pairs of the ``top_k`` likeliest tokens of
    neighbouring rows by codebooks of ``rank`` numbers a token."""

    rank: int = Field(gt=0)
    top_k: int = Field(gt=0)


class DFlashConfig(Frozen):
    """A DFlash drafter.

    ``feature_layers`` are the layers of the target whose outputs it reads, from 0, in the order of
    the columns of ``fc``; empty if the file does not say. There are ``feature_count``.
    ``embedding_scale`` and ``softcap`` are ``None`` if the file leaves them to the target.
    ``vocabulary`` is that of the target as the file states it, ``None`` if it does not;
    ``draft_ids`` maps rows of a reduced head to tokens of the target. ``own_embedding`` and
    ``own_head``: the file has one, otherwise the target's is used. ``context_norm``: a layer's
    first norm applies to features too. ``feature_norms``: the features of every feature layer
    have a norm of their own before ``fc``.
    """

    architecture: str
    name: str
    layers: tuple[BlockLayer, ...]
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    norm_eps: float
    rope: Rope
    rope_divisors: bool
    block: int
    mask_token: int
    feature_layers: tuple[int, ...]
    feature_count: int
    vocabulary: int | None
    own_embedding: bool
    own_head: bool
    draft_ids: tuple[int, ...] = Field(default=(), repr=False)
    embedding_scale: float | None = None
    logit_scale: float = 1.0
    softcap: float | None = None
    attention_scale: float | None = None
    value_scale: float = 1.0
    activation: Activation = "silu"
    gate: GateKind = "none"
    context_norm: bool = False
    feature_norms: bool = False
    convolution: Convolution | None = None
    selector: Selector | None = None

    @property
    def head_rows(self) -> int | None:
        """Rows of the head: of the drafter's own vocabulary if it is reduced."""
        return len(self.draft_ids) or self.vocabulary


def spread_layers(count: int, layers: int) -> tuple[int, ...]:
    """The ``count`` feature layers of a target of ``layers`` layers, if no list states them.

    They are spread evenly from the second layer to the third last. Halves are rounded to even, as
    by the authors' ``build_target_layer_ids``.
    """
    if count == 1:
        return (layers // 2,)
    return tuple(round(1 + index * (layers - 4) / (count - 1)) for index in range(count))
