"""Rotary embeddings as model files state them. Torch-free."""

from __future__ import annotations

from math import isclose
from typing import Final

from kinfolk.config import Rope, Yarn
from kinfolk.errors import UnsupportedModelError
from kinfolk.gguf.metadata import Metadata

_ROUNDING: Final = 1e-3


def read_rope(
    meta: Metadata,
    head_dim: int,
    *,
    suffix: str = "",
    scaled: bool = True,
    default_dims: int | None = None,
    default_base: float | None = None,
) -> Rope:
    """The embedding under the keys ending in ``suffix``; required where no default is given.

    The keys of context extension have no suffix: ``scaled`` says whether they are meant.
    Raises ModelFormatError or UnsupportedModelError.
    """
    key = meta.arch_key
    kind = meta.string(key("rope.scaling.type"), default="none") if scaled else "none"
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModelError(
            f"{meta.path}: key {key('rope.scaling.type')!r} is {kind!r}; known are none, linear "
            "and yarn"
        )
    count = key(f"rope.dimension_count{suffix}")
    dims = meta.integer(count, default=default_dims, minimum=2)
    if dims % 2 or dims > head_dim:
        raise meta.fail(
            f"key {count!r} is {dims}, expected an even number up to the {head_dim} numbers of a "
            "head",
            count,
        )
    return Rope(
        dims=dims,
        base=meta.number(key(f"rope.freq_base{suffix}"), default=default_base),
        yarn=_read_yarn(meta) if kind == "yarn" else None,
        linear_factor=meta.number(key("rope.scaling.factor")) if kind == "linear" else 1.0,
    )


def _read_yarn(meta: Metadata) -> Yarn:
    key = meta.arch_key
    yarn = Yarn(
        factor=meta.number(key("rope.scaling.factor")),
        original_context=meta.integer(key("rope.scaling.original_context_length"), minimum=1),
        beta_fast=meta.number(key("rope.scaling.yarn_beta_fast"), default=32.0),
        beta_slow=meta.number(key("rope.scaling.yarn_beta_slow"), default=1.0),
    )
    return yarn.model_copy(update={"magnitude": _magnitude(meta, yarn)})


def _magnitude(meta: Metadata, yarn: Yarn) -> float | None:
    """The factor on cosine and sine, ``None`` = the usual one, which follows from the context's.

    ``attn_factor`` multiplies the usual factor. Of ``yarn_attn_factor`` converters have made a
    multiplier as well as the factor itself, and llama.cpp reads it for few architectures: 1 and the
    usual factor both mean the usual factor, anything else can only be the factor itself.
    """
    multiplier = meta.arch_key("rope.scaling.attn_factor")
    if multiplier in meta:
        return yarn.usual_magnitude * meta.number(multiplier)
    stated = meta.number(meta.arch_key("rope.scaling.yarn_attn_factor"), default=1.0)
    usual = any(isclose(stated, x, rel_tol=_ROUNDING) for x in (1.0, yarn.usual_magnitude))
    return None if usual else stated
