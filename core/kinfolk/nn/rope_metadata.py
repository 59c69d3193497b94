"""Reads rotary embeddings from a file's metadata. Torch-free."""

from __future__ import annotations

from math import isclose
from typing import Final

from kinfolk.config import Rope, Yarn
from kinfolk.gguf.metadata import Metadata

_ROUNDING: Final = 1e-3

_LINEAR_FACTORS: Final = ("rope.scaling.factor", "rope.scale_linear")
"""The key of the factor, and the one that older files have."""

MOST_BASE: Final = 1e15
MOST_FACTOR: Final = 1e6
"""Largest factor of context extension and of YaRN's betas, a thousand times those of real files."""

MOST_MAGNITUDE: Final = 1000.0
"""Largest factor on cosines and sines; in real files it is little more than 1."""


def read_rope(
    meta: Metadata,
    head_dim: int,
    *,
    suffix: str = "",
    scaled: bool = True,
    default_dims: int | None = None,
    default_base: float | None = None,
) -> Rope:
    """The rotary embedding in the keys that end in ``suffix``; keys without a default are required.

    The keys of context extension have no suffix; ``scaled``: whether they apply to this embedding.
    Raises :class:`ModelFormatError` naming a key, or :class:`UnsupportedModelError`.
    """
    key = meta.arch_key
    kind = scaling_kind(meta) if scaled else "none"
    if kind not in ("none", "linear", "yarn"):
        raise meta.unsupported(
            f"key {key('rope.scaling.type')!r} is {kind!r}; known are none, linear and yarn"
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
        base=meta.number(
            key(f"rope.freq_base{suffix}"), default=default_base, above=1, maximum=MOST_BASE
        ),
        yarn=_read_yarn(meta) if kind == "yarn" else None,
        linear_factor=_linear_factor(meta) if kind == "linear" else 1.0,
    )


def scaling_kind(meta: Metadata) -> str:
    """How the context was extended. A factor without a kind is linear, as in llama.cpp: files from
    before there were kinds have no more."""
    key = meta.arch_key("rope.scaling.type")
    if key in meta:
        return meta.string(key)
    stated = any(meta.arch_key(name) in meta for name in _LINEAR_FACTORS)
    return "linear" if stated and _linear_factor(meta) != 1 else "none"


def _linear_factor(meta: Metadata) -> float:
    """The factor of linear extension; 0 is none."""
    new, old = map(meta.arch_key, _LINEAR_FACTORS)
    only_old = old in meta and new not in meta
    factor = meta.number(old if only_old else new, minimum=0, maximum=MOST_FACTOR)
    return factor or 1.0


def _factor(
    meta: Metadata, name: str, *, default: float | None = None, maximum: float = MOST_FACTOR
) -> float:
    """A positive number from ``rope.scaling.<name>``."""
    key = meta.arch_key(f"rope.scaling.{name}")
    return meta.number(key, default=default, above=0, maximum=maximum)


def _read_yarn(meta: Metadata) -> Yarn:
    original = meta.arch_key("rope.scaling.original_context_length")
    yarn = Yarn(
        factor=_factor(meta, "factor"),
        original_context=meta.integer(original, minimum=1),
        beta_fast=_factor(meta, "yarn_beta_fast", default=32.0),
        beta_slow=_factor(meta, "yarn_beta_slow", default=1.0),
    )
    return yarn.model_copy(update={"magnitude": _magnitude(meta, yarn)})


def _magnitude(meta: Metadata, yarn: Yarn) -> float | None:
    """The factor on cosines and sines; ``None`` = the usual one, a function of YaRN's ``factor``.

    ``attn_factor`` multiplies the usual factor. ``yarn_attn_factor`` is ambiguous: some converters
    write a multiplier, others the factor itself. 1 and the usual factor both mean the usual factor;
    any other value can only be the factor itself.
    """
    if meta.arch_key("rope.scaling.attn_factor") in meta:
        return yarn.usual_magnitude * _factor(meta, "attn_factor", maximum=MOST_MAGNITUDE)
    stated = _factor(meta, "yarn_attn_factor", default=1.0, maximum=MOST_MAGNITUDE)
    usual = any(isclose(stated, x, rel_tol=_ROUNDING) for x in (1.0, yarn.usual_magnitude))
    return None if usual else stated
