"""Configuration of a dense decoder, from the metadata keys that converters agree on."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from kinfolk.config import ModelConfig, Rope, common_fields, layer_count
from kinfolk.gguf.metadata import Metadata
from kinfolk.nn.rope_metadata import read_rope

DEFAULT_ROPE_BASE: Final = 10000.0
"""The base of files that state none, written by older converters."""


class DenseConfig(ModelConfig):
    """``heads`` query heads and ``kv_heads`` key heads of ``head_dim`` numbers; ``kv_heads``
    divides ``heads``. ``feed_forward`` is the number of channels between gate and down."""

    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    feed_forward: int = Field(gt=0)
    rope: Rope


def read_dense(meta: Metadata) -> dict[str, Any]:
    """The fields of :class:`DenseConfig`, as arguments of it or of a subclass.

    Raises :class:`ModelFormatError` naming a key that is missing or has another type, and
    :class:`UnsupportedModelError` for features that this decoder lacks.
    """
    key = meta.arch_key
    width = meta.integer(key("embedding_length"), minimum=1)
    heads = meta.integer(key("attention.head_count"), minimum=1)
    kv_heads = meta.integer(key("attention.head_count_kv"), default=heads, minimum=1)
    if heads % kv_heads:
        raise meta.fail(
            f"key {key('attention.head_count_kv')!r} is {kv_heads}, which does not divide the "
            f"{heads} query heads",
            key("attention.head_count_kv"),
        )
    if heads > width and key("attention.key_length") not in meta:
        raise meta.fail(
            f"key {key('attention.head_count')!r} is {heads}, more heads than a row has numbers "
            f"({width}), and {key('attention.key_length')!r}, the size of a head, is missing",
            key("attention.head_count"),
        )
    head_dim = meta.integer(key("attention.key_length"), default=width // heads, minimum=1)
    value_dim = meta.integer(key("attention.value_length"), default=head_dim, minimum=1)
    if value_dim != head_dim:
        raise meta.unsupported(
            f"keys of {head_dim} numbers ({key('attention.key_length')}) and values "
            f"of {value_dim} ({key('attention.value_length')}); this decoder needs them equal"
        )
    if experts := meta.integer(key("expert_count"), default=0, minimum=0):
        raise meta.unsupported(
            f"key {key('expert_count')!r} is {experts}; this decoder has no experts"
        )
    return {
        **common_fields(meta),
        "layers": layer_count(meta),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "feed_forward": meta.integer(key("feed_forward_length"), minimum=1),
        "rope": read_rope(meta, head_dim, default_dims=head_dim, default_base=DEFAULT_ROPE_BASE),
    }
