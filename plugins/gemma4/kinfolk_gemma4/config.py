"""Configuration of the family's models, from the metadata of a file.

Sizes differ in their features: experts, per-layer embeddings, layers that share the keys and values
of others, value projections on windowed layers only. Fields that vary by layer are tuples.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from kinfolk.config import ModelConfig, Rope, common_fields, layer_count
from kinfolk.gguf.metadata import Metadata
from kinfolk.nn.rope_metadata import read_rope, scaling_kind

DEFAULT_SOFTCAP: Final = 30.0
"""The softcap of a file that states none; 0 = no softcap."""

MOST_SOFTCAP: Final = 1e6
"""Largest softcap; logits are a ten-thousandth of it, so it does not change them."""

_FIXED: Final = (
    ("attn_logit_softcapping", 0),
    ("attention.scale", 1),
    ("expert_gating_func", 1),
    ("expert_weights_scale", 1),
    ("expert_shared_count", 0),
)
"""Keys that files of the family omit, with the only value that is supported."""


class Gemma4Config(ModelConfig):
    """``windowed`` layers see ``window`` positions, the others all. ``owner`` is the layer whose
    keys and values a layer reads: itself unless it shares them.

    ``input_width``: numbers of the per-layer embedding of a row, 0 = none. ``top_k`` of a layer's
    experts, each ``expert_width`` wide, run besides its dense feed-forward network.
    """

    windowed: tuple[bool, ...]
    window: int = Field(gt=0)
    owner: tuple[int, ...]
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    head_dim: tuple[int, ...]
    rope: Rope
    window_rope: Rope
    feed_forward: tuple[int, ...]
    input_width: int = Field(ge=0)
    softcap: float = Field(ge=0)
    top_k: int = Field(ge=0)
    expert_width: int = Field(ge=0)

    @property
    def has_full_layers(self) -> bool:
        return not all(self.windowed)

    def owns_keys(self, layer: int) -> bool:
        """Whether a layer makes keys and values."""
        return self.owner[layer] == layer


def read_config(meta: Metadata) -> Gemma4Config:
    """The configuration of a file. Raises :class:`ModelFormatError` or
    :class:`UnsupportedModelError` naming the key."""
    key = meta.arch_key
    fields = layer_fields(meta)
    layers, windowed = fields["layers"], fields["windowed"]
    experts = meta.integer(key("expert_count"), default=0, minimum=0)
    minimum, missing = (1, None) if experts else (0, 0)
    top_k = meta.integer(key("expert_used_count"), default=missing, minimum=minimum)
    if top_k > experts:
        raise meta.fail(
            f"key {key('expert_used_count')!r} is {top_k}, of {experts} experts in "
            f"{key('expert_count')!r}",
            key("expert_used_count"),
        )
    return Gemma4Config(
        **fields,
        experts=(experts,) * layers if experts else (),
        owner=_owners(meta, windowed),
        input_width=meta.integer(key("embedding_length_per_layer_input"), minimum=0),
        softcap=meta.number(
            key("final_logit_softcapping"), default=DEFAULT_SOFTCAP, minimum=0, maximum=MOST_SOFTCAP
        ),
        top_k=top_k,
        expert_width=meta.integer(
            key("expert_feed_forward_length"), default=missing, minimum=minimum
        ),
    )


def layer_fields(meta: Metadata) -> dict[str, Any]:
    """The fields of :class:`Gemma4Config` that models and their assistants read alike: those of
    attention and of dense feed-forward networks."""
    key = meta.arch_key
    _refuse_other_kinds(meta)
    layers = layer_count(meta)
    windowed = meta.per_layer_flags(key("attention.sliding_window_pattern"), layers)
    full_dim, window_dim = _head_dim(meta, ""), _head_dim(meta, "_swa")
    heads = meta.per_layer(key("attention.head_count"), layers, minimum=1)
    kv_heads = heads
    if key("attention.head_count_kv") in meta:
        kv_heads = meta.per_layer(key("attention.head_count_kv"), layers, minimum=1)
    if any(count % kv for count, kv in zip(heads, kv_heads, strict=True)):
        raise meta.fail(
            f"the query heads of layers, {heads} in key {key('attention.head_count')!r}, are no "
            f"multiples of their key heads, {kv_heads} in key {key('attention.head_count_kv')!r}",
            key("attention.head_count_kv"),
        )
    return {
        **common_fields(meta),
        "layers": layers,
        "windowed": windowed,
        "window": meta.integer(key("attention.sliding_window"), minimum=1),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": tuple(window_dim if flag else full_dim for flag in windowed),
        "rope": _rope(meta, "", full_dim, 1e6),
        "window_rope": _rope(meta, "_swa", window_dim, 1e4),
        "feed_forward": meta.per_layer(key("feed_forward_length"), layers, minimum=1),
    }


def _refuse_other_kinds(meta: Metadata) -> None:
    key = meta.arch_key
    scaling = scaling_kind(meta)
    if scaling != "none" and key("rope.scaling.type") not in meta:
        raise meta.unsupported(
            f"key {key('rope.scaling.factor')!r} or {key('rope.scale_linear')!r} extends the "
            "context; this version of the family knows no such models"
        )
    checks = [(key("rope.scaling.type"), scaling, "none")] + [
        (key(name), meta.number(key(name), default=only, minimum=0), only) for name, only in _FIXED
    ]
    for name, value, only in checks:
        if value != only:
            raise meta.unsupported(
                f"key {name!r} is {value!r}; this version of the family knows models with {only!r} "
                "only"
            )


def _owners(meta: Metadata, windowed: tuple[bool, ...]) -> tuple[int, ...]:
    """The layer whose keys and values each layer reads: itself, except for the last layers, which
    share those of the last layer of their kind that has its own."""
    key = meta.arch_key("attention.shared_kv_layers")
    layers, shared = len(windowed), meta.integer(key, default=0, minimum=0)
    own = layers - shared
    if own < 1:
        raise meta.fail(
            f"key {key!r}: {shared} of {layers} layers share keys and values, none owns any", key
        )
    owners = list(range(own))
    for layer in range(own, layers):
        alike = [index for index in range(own) if windowed[index] == windowed[layer]]
        if not alike:
            kind = "windowed" if windowed[layer] else "full-attention"
            raise meta.fail(
                f"key {key!r} is {shared}: no {kind} layer before layer {own} owns the keys and "
                f"values that layer {layer} shares",
                key,
            )
        owners.append(alike[-1])
    return tuple(owners)


def _head_dim(meta: Metadata, suffix: str) -> int:
    keys, values = (meta.arch_key(f"attention.{side}_length{suffix}") for side in ("key", "value"))
    dim = meta.integer(keys, minimum=1)
    value_dim = meta.integer(values, default=dim, minimum=1)
    if value_dim != dim:
        raise meta.unsupported(
            f"key {values!r} is {value_dim}, {keys!r} is {dim}; this version of the family needs "
            "them equal"
        )
    return dim


def _rope(meta: Metadata, suffix: str, dim: int, base: float) -> Rope:
    return read_rope(meta, dim, suffix=suffix, scaled=False, default_dims=dim, default_base=base)
