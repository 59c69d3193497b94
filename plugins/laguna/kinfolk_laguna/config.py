"""Configuration of the family's models, from the metadata of a file."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from kinfolk.config import ModelConfig, Rope, common_fields, expert_scale, layer_count
from kinfolk.gguf.metadata import Metadata
from kinfolk.nn.rope_metadata import read_rope

WINDOW_PERIOD: Final = 4
"""The default period of files that state none: layers 0, 4, 8 and so on have full attention."""

_SIGMOID: Final = 2
_OTHER_DIALECT: Final = ("attention.layer_types", "rope.swa.freq_base", "decoder_sparse_step")


class LagunaConfig(ModelConfig):
    """``windowed`` layers see ``window`` positions and have their own rotary embedding.

    The first layers have a feed-forward network of ``feed_forward`` channels; in the others a row
    uses ``top_k`` experts of ``expert_width`` channels and a shared expert of ``shared_width``.
    ``rope.yarn.magnitude`` is set if the file's keys are ambiguous about it.
    """

    windowed: tuple[bool, ...]
    window: int | None
    heads: tuple[int, ...]
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    rope: Rope
    window_rope: Rope | None
    feed_forward: int = Field(gt=0)
    top_k: int = Field(gt=0)
    expert_width: tuple[int, ...]
    shared_width: int = Field(gt=0)
    expert_scale: float


def read_config(meta: Metadata) -> LagunaConfig:
    """The configuration of a file. Raises :class:`ModelFormatError` or
    :class:`UnsupportedModelError` naming the key."""
    key = meta.arch_key
    _refuse_other_dialect(meta)
    layers = layer_count(meta)
    window = meta.integer(key("attention.sliding_window"), default=0, minimum=0) or None
    windowed = _windowed(meta, layers) if window else (False,) * layers
    head_dim = _head_dim(meta)
    return LagunaConfig(
        **common_fields(meta),
        layers=layers,
        windowed=windowed,
        window=window,
        **_heads(meta, layers),
        head_dim=head_dim,
        rope=read_rope(meta, head_dim),
        window_rope=(
            read_rope(meta, head_dim, suffix="_swa", scaled=False) if any(windowed) else None
        ),
        feed_forward=meta.integer(key("feed_forward_length"), minimum=1),
        **_experts(meta, layers),
    )


def _windowed(meta: Metadata, layers: int) -> tuple[bool, ...]:
    """Whether each layer is windowed. Files state a flag for each layer, a period, or nothing; the
    first layer of a period has full attention."""
    stated = meta.arch_key("attention.sliding_window_pattern")
    if stated in meta and meta.value(stated).is_array:
        return meta.per_layer_flags(stated, layers)
    period = meta.integer(stated, default=WINDOW_PERIOD, minimum=1)
    return tuple(layer % period != 0 for layer in range(layers))


def _heads(meta: Metadata, layers: int) -> dict[str, Any]:
    count, shared = meta.arch_key("attention.head_count"), meta.arch_key("attention.head_count_kv")
    heads = meta.per_layer(count, layers, minimum=1)
    kv_heads = set(meta.per_layer(shared, layers, minimum=1)) if shared in meta else set(heads)
    if len(kv_heads) > 1:
        raise meta.unsupported(
            f"key {shared!r} has the entries {sorted(kv_heads)}; this version of the family needs "
            "as many key heads in every layer"
        )
    (kv,) = kv_heads
    if any(number % kv for number in heads):
        raise meta.fail(
            f"the query heads of layers, {heads} in key {count!r}, are no multiples of {kv} key "
            f"heads in key {shared!r}",
            count,
        )
    return {"heads": heads, "kv_heads": kv}


def _head_dim(meta: Metadata) -> int:
    """The size of a head, a required key: it is not the width divided by the heads."""
    keys, values = meta.arch_key("attention.key_length"), meta.arch_key("attention.value_length")
    dim = meta.integer(keys, minimum=1)
    value_dim = meta.integer(values, default=dim, minimum=1)
    if value_dim != dim:
        raise meta.unsupported(
            f"key {values!r} is {value_dim}, {keys!r} is {dim}; this version of the family needs "
            "them equal"
        )
    return dim


def _experts(meta: Metadata, layers: int) -> dict[str, Any]:
    key = meta.arch_key
    dense = meta.integer(key("leading_dense_block_count"), minimum=0, maximum=layers)
    experts = meta.integer(key("expert_count"), minimum=1)
    top_k = meta.integer(key("expert_used_count"), minimum=1, maximum=experts)
    gating = meta.integer(key("expert_gating_func"), default=_SIGMOID, minimum=0)
    if gating != _SIGMOID:
        raise meta.unsupported(
            f"key {key('expert_gating_func')!r} is {gating}, not {_SIGMOID} (sigmoid)"
        )
    if not meta.boolean(key("expert_weights_norm"), default=True):
        raise meta.unsupported(
            f"key {key('expert_weights_norm')!r} is false; the weights of a token's experts are "
            "always normalised here"
        )
    width = key("expert_feed_forward_length")
    widths = meta.per_layer(width, layers, minimum=0)
    if 0 in widths[dense:]:
        raise meta.fail(f"key {width!r} is 0, expected at least 1 where a layer has experts", width)
    shared = meta.integer(key("expert_shared_count"), default=1, minimum=1)
    return {
        "experts": (0,) * dense + (experts,) * (layers - dense),
        "top_k": top_k,
        "expert_width": widths,
        "shared_width": meta.integer(
            key("expert_shared_feed_forward_length"), default=max(widths) * shared, minimum=1
        ),
        "expert_scale": expert_scale(meta),
    }


def _refuse_other_dialect(meta: Metadata) -> None:
    for name in _OTHER_DIALECT:
        if meta.arch_key(name) in meta:
            raise meta.unsupported(
                f"key {meta.arch_key(name)!r} belongs to an early form of these files that names "
                "tensors and keys differently; convert the model again"
            )
