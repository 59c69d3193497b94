"""Configuration of a hybrid decoder, from the metadata keys that its converters write."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from kinfolk.config import ModelConfig, Rope, common_fields
from kinfolk.errors import UnsupportedModelError
from kinfolk.gguf.metadata import Metadata
from kinfolk.nn.rope_metadata import read_rope

DEFAULT_INTERVAL = 4


class HybridConfig(ModelConfig):
    """``recurrent`` says for each layer of the trunk whether it is a gated delta net.

    ``draft_layers`` counts blocks behind the trunk that predict further tokens.
    """

    recurrent: tuple[bool, ...]
    draft_layers: int = Field(ge=0)
    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    rope: Rope
    key_heads: int = Field(gt=0)
    value_heads: int = Field(gt=0)
    state_dim: int = Field(gt=0)
    conv: int = Field(gt=1)


def read_hybrid(meta: Metadata) -> dict[str, Any]:
    """Fields of :class:`HybridConfig`. Raises ModelFormatError or UnsupportedModelError."""
    key = meta.arch_key
    blocks = meta.integer(key("block_count"), minimum=1)
    draft_layers = meta.integer(key("nextn_predict_layers"), default=0, minimum=0)
    layers = blocks - draft_layers
    if layers < 1:
        raise meta.fail(f"{blocks} blocks, of which {draft_layers} predict ahead", "block_count")
    heads = max(meta.per_layer(key("attention.head_count"), blocks))
    head_dim = meta.integer(key("attention.key_length"), minimum=1)
    if meta.integer(key("attention.value_length"), default=head_dim) != head_dim:
        raise UnsupportedModelError(
            f"{meta.path}: {key('attention.value_length')} differs from key_length {head_dim}; "
            "this decoder needs them equal"
        )
    return {
        **common_fields(meta),
        "layers": layers,
        "recurrent": _layer_kinds(meta, layers, blocks),
        "draft_layers": draft_layers,
        "heads": heads,
        # Some converters write one entry a layer, with 0 where a layer has no attention.
        "kv_heads": max(meta.per_layer(key("attention.head_count_kv"), blocks, default=heads)),
        "head_dim": head_dim,
        # A file without base or dimension count would run with wrong defaults.
        "rope": read_rope(meta, head_dim),
        **_delta(meta),
    }


def _layer_kinds(meta: Metadata, layers: int, blocks: int) -> tuple[bool, ...]:
    stated = meta.arch_key("attention.recurrent_layers")
    if stated in meta:
        flags = meta.booleans(stated)
        if len(flags) not in (layers, blocks):
            raise meta.fail(f"key {stated!r} has {len(flags)} entries for {blocks} blocks", stated)
        return tuple(flags.tolist()[:layers])
    interval = meta.integer(
        meta.arch_key("full_attention_interval"), default=DEFAULT_INTERVAL, minimum=1
    )
    return tuple((index + 1) % interval != 0 for index in range(layers))


def _delta(meta: Metadata) -> dict[str, int]:
    key = meta.arch_key
    value_heads = meta.integer(key("ssm.time_step_rank"), minimum=1)
    key_heads = meta.integer(key("ssm.group_count"), minimum=1)
    inner = meta.integer(key("ssm.inner_size"), minimum=1)
    state_dim = meta.integer(key("ssm.state_size"), minimum=1)
    if inner != value_heads * state_dim or value_heads % key_heads:
        raise meta.fail(
            f"{inner} inner channels do not fit {value_heads} value heads of {state_dim}, "
            f"{key_heads} key heads",
            key("ssm.inner_size"),
        )
    if not meta.boolean(key("ssm.v_head_reordered"), default=True):
        raise UnsupportedModelError(
            f"{meta.path}: value heads are stored in grouped order "
            f"({key('ssm.v_head_reordered')} is false); convert the model again"
        )
    return {
        "key_heads": key_heads,
        "value_heads": value_heads,
        "state_dim": state_dim,
        "conv": meta.integer(key("ssm.conv_kernel"), minimum=2),
    }
