"""Configuration of a hybrid decoder, from the metadata keys that its converters write."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from kinfolk.config import ModelConfig, Rope, common_fields, layer_count
from kinfolk.gguf.metadata import Metadata
from kinfolk.nn.rope_metadata import read_rope

DEFAULT_INTERVAL = 4


class HybridConfig(ModelConfig):
    """``recurrent``: for each layer of the trunk, whether it is a gated delta net.

    ``draft_layers`` counts the blocks after the trunk that predict further tokens (MTP).
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
    """The fields of :class:`HybridConfig`. Raises :class:`ModelFormatError` naming a key, or
    :class:`UnsupportedModelError`."""
    key = meta.arch_key
    blocks = layer_count(meta)
    draft_layers = meta.integer(
        key("nextn_predict_layers"), default=0, minimum=0, maximum=blocks - 1
    )
    layers = blocks - draft_layers
    heads = _heads(meta, "attention.head_count", blocks)
    kv_heads = _heads(meta, "attention.head_count_kv", blocks, default=heads)
    if heads % kv_heads:
        raise meta.fail(
            f"key {key('attention.head_count_kv')!r} is {kv_heads}, which does not divide the "
            f"{heads} query heads of {key('attention.head_count')!r}",
            key("attention.head_count_kv"),
        )
    head_dim = meta.integer(key("attention.key_length"), minimum=1)
    value_dim = meta.integer(key("attention.value_length"), default=head_dim, minimum=1)
    if value_dim != head_dim:
        raise meta.unsupported(
            f"keys of {head_dim} numbers ({key('attention.key_length')}) and values of {value_dim} "
            f"({key('attention.value_length')}); this decoder needs them equal"
        )
    return {
        **common_fields(meta),
        "layers": layers,
        "recurrent": _layer_kinds(meta, layers, blocks),
        "draft_layers": draft_layers,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        # No defaults: those of other architectures would be wrong here.
        "rope": read_rope(meta, head_dim),
        **_delta(meta),
    }


def _heads(meta: Metadata, name: str, blocks: int, default: int | None = None) -> int:
    """A head count: some converters write one entry a layer, 0 for layers without attention."""
    key = meta.arch_key(name)
    heads = max(meta.per_layer(key, blocks, default=default, minimum=0))
    if not heads:
        raise meta.fail(f"key {key!r} is 0, expected at least 1 where a layer has attention", key)
    return heads


def _layer_kinds(meta: Metadata, layers: int, blocks: int) -> tuple[bool, ...]:
    stated = meta.arch_key("attention.recurrent_layers")
    if stated in meta:
        flags = meta.booleans(stated)
        if len(flags) not in (layers, blocks):
            raise meta.fail(
                f"key {stated!r} has {len(flags)} entries for the {blocks} blocks of "
                f"{meta.arch_key('block_count')!r}",
                stated,
            )
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
            f"{inner} inner channels ({key('ssm.inner_size')}) do not fit {value_heads} value "
            f"heads ({key('ssm.time_step_rank')}) of {state_dim} ({key('ssm.state_size')}) and "
            f"{key_heads} key heads ({key('ssm.group_count')})",
            key("ssm.inner_size"),
        )
    if not meta.boolean(key("ssm.v_head_reordered"), default=True):
        raise meta.unsupported(
            f"value heads are stored in grouped order ({key('ssm.v_head_reordered')} is false); "
            "convert the model again"
        )
    return {
        "key_heads": key_heads,
        "value_heads": value_heads,
        "state_dim": state_dim,
        "conv": meta.integer(key("ssm.conv_kernel"), minimum=2),
    }
