"""The sizes of a decoder that mixes gated delta-net layers with full attention.

This and the modules beside it are a building block for families of this kind: they bring the
feed-forward part and their own names, the rest is here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kinfolk.convert.checkpoint import Config
from kinfolk.errors import ConversionError

FULL: Final = "full_attention"
LINEAR: Final = "linear_attention"
DEFAULT_INTERVAL: Final = 4
DEFAULT_SECTIONS: Final = (11, 11, 10)

_DRAFT_LAYER: Final = re.compile(r"mtp\.layers\.(\d+)\..+")


@dataclass(frozen=True, slots=True)
class HybridShape:
    """The sizes of one model. ``linear`` has a flag a layer; ``draft_layers`` follow the trunk."""

    vocabulary: int
    hidden: int
    context: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary: int
    rope_base: float
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    linear: tuple[bool, ...]
    interval: int = DEFAULT_INTERVAL
    sections: tuple[int, ...] = DEFAULT_SECTIONS
    kernel: int = 4
    epsilon: float = 1e-6
    tied: bool = False
    draft_layers: int = 0
    yarn: tuple[float, int] | None = None

    @property
    def layers(self) -> int:
        return len(self.linear)

    @property
    def inner(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.inner


def interval_layers(count: int, interval: int = DEFAULT_INTERVAL) -> tuple[bool, ...]:
    """Whether each of ``count`` layers is linear: every ``interval``-th is full attention."""
    return tuple((index + 1) % interval != 0 for index in range(count))


# -- from the configuration -----------------------------------------------------------------------


def read_shape(config: Config, *, draft_layers: int, tied: bool) -> HybridShape:
    """The shape a text configuration describes; refuses what the file could not express."""
    config.require("hidden_act", "silu", "silu")
    config.require("attention_bias", False, False)
    layers = config.layers()
    linear, interval = _layer_kinds(config, layers)
    rope = config.section("rope_parameters")
    head_dim = config.integer("head_dim")
    key_heads, value_heads = (
        config.integer("linear_num_key_heads"),
        config.integer("linear_num_value_heads"),
    )
    if value_heads % key_heads:
        raise config.fail(
            "linear_num_value_heads", f"is {value_heads}, no multiple of {key_heads} key heads"
        )
    return HybridShape(
        vocabulary=config.integer("vocab_size"),
        hidden=config.integer("hidden_size"),
        context=config.integer("max_position_embeddings"),
        heads=config.integer("num_attention_heads"),
        kv_heads=config.integer("num_key_value_heads"),
        head_dim=head_dim,
        rotary=int(head_dim * _rope(config, rope, "partial_rotary_factor", 0.25)),
        rope_base=_rope(config, rope, "rope_theta"),
        key_heads=key_heads,
        value_heads=value_heads,
        key_dim=config.integer("linear_key_head_dim"),
        value_dim=config.integer("linear_value_head_dim"),
        linear=linear,
        interval=interval,
        sections=tuple(rope.items("mrope_section", int, DEFAULT_SECTIONS)),
        kernel=config.integer("linear_conv_kernel_dim"),
        epsilon=config.number("rms_norm_eps"),
        tied=tied,
        draft_layers=draft_layers,
        yarn=_yarn(rope),
    )


def draft_layers_of(names: Iterable[str]) -> int:
    """How many layers for multi-token prediction a checkpoint holds, whatever its config says."""
    numbers = {int(match[1]) for name in names if (match := _DRAFT_LAYER.fullmatch(name))}
    if len(numbers) > 1:
        raise ConversionError(
            f"the checkpoint holds {len(numbers)} mtp.layers; files can hold one such layer"
        )
    return len(numbers)


def _layer_kinds(config: Config, layers: int) -> tuple[tuple[bool, ...], int]:
    """A flag a layer, and the interval that files state besides."""
    kinds = config.items("layer_types", str, [])
    if not kinds:
        interval = config.integer("full_attention_interval", DEFAULT_INTERVAL)
        return interval_layers(layers, interval), interval
    unknown = sorted(set(kinds) - {FULL, LINEAR})
    if unknown or len(kinds) != layers:
        raise config.fail(
            "layer_types",
            f"has {len(kinds)} entries of the kinds {sorted(set(kinds))}, expected {layers} of "
            f"{FULL!r} and {LINEAR!r}",
        )
    first = kinds.index(FULL) + 1 if FULL in kinds else DEFAULT_INTERVAL
    linear = tuple(kind == LINEAR for kind in kinds)
    return linear, config.integer("full_attention_interval", first)


def _rope(config: Config, rope: Config, key: str, default: float | None = None) -> float:
    """A rope value: under ``rope_parameters``, or beside it in older files."""
    if key in rope:
        return rope.number(key)
    return config.number(key, default)


def _yarn(rope: Config) -> tuple[float, int] | None:
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return None
    if kind != "yarn":
        raise rope.fail("rope_type", f"is {kind!r}; only 'default' and 'yarn' can be converted")
    return rope.number("factor"), rope.integer("original_max_position_embeddings")
