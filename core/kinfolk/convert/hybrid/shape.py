"""The sizes of a decoder that mixes gated delta-net layers with full attention.

This and the modules beside it are a building block for families of this kind: they bring the
feed-forward part and their own names, the rest is here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from kinfolk.config import Yarn
from kinfolk.convert.checkpoint import Config
from kinfolk.convert.rope import read_yarn, rope_base, rope_kind, rope_section, rotary_dims
from kinfolk.errors import ConversionError

FULL: Final = "full_attention"
LINEAR_ATTENTION: Final = "linear_attention"
DEFAULT_INTERVAL: Final = 4
DEFAULT_SECTIONS: Final = (11, 11, 10)
DEFAULT_PART: Final = 0.25
"""Of a head's dimensions, that turn."""

SECTIONS: Final = 4
"""Numbers that the key of a file holds."""

_USUAL: Final = {
    "hidden_act": "silu",
    "attention_bias": False,
    "attn_output_gate": True,
    "mtp_use_dedicated_embeddings": False,
    "mlp_only_layers": [],
}
_WITHOUT_EFFECT: Final = {
    "mtp_num_hidden_layers": "the tensors of the checkpoint tell how many layers there are",
    "mamba_ssm_dtype": "the precision of the state is a matter of the runtime",
}

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
    yarn: Yarn | None = None

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
    config.require_usual(_USUAL)
    config.choice("output_gate_type", {"swish": True, "silu": True}, True)
    config.ignore(_WITHOUT_EFFECT)
    layers = config.layers()
    linear, interval = _layer_kinds(config, layers)
    head_dim, state = config.integer("head_dim"), _state_size(config)
    rope = _read_rope(config, head_dim)
    return HybridShape(
        vocabulary=config.integer("vocab_size"),
        hidden=config.integer("hidden_size"),
        context=config.integer("max_position_embeddings"),
        heads=_multiple(config, "num_attention_heads", "num_key_value_heads"),
        kv_heads=config.integer("num_key_value_heads"),
        head_dim=head_dim,
        rotary=rope.dims,
        rope_base=rope.base,
        key_heads=config.integer("linear_num_key_heads"),
        value_heads=_multiple(config, "linear_num_value_heads", "linear_num_key_heads"),
        key_dim=state,
        value_dim=state,
        linear=linear,
        interval=interval,
        sections=rope.sections,
        kernel=config.integer("linear_conv_kernel_dim", minimum=2),
        epsilon=config.number("rms_norm_eps"),
        tied=tied,
        draft_layers=draft_layers,
        yarn=rope.yarn,
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
    if not config.items("layer_types", str, []):
        interval = config.integer("full_attention_interval", DEFAULT_INTERVAL)
        return interval_layers(layers, interval), interval
    kinds = config.per_layer("layer_types", (FULL, LINEAR_ATTENTION), ())
    first = kinds.index(FULL) + 1 if FULL in kinds else DEFAULT_INTERVAL
    linear = tuple(kind == LINEAR_ATTENTION for kind in kinds)
    return linear, config.integer("full_attention_interval", first)


def _multiple(config: Config, key: str, divisor: str) -> int:
    """The number of heads under ``key``, which share those under ``divisor`` evenly."""
    heads, groups = config.integer(key), config.integer(divisor)
    if heads % groups:
        raise config.fail(key, f"is {heads}, no multiple of {groups}, the '{divisor}'")
    return heads


def _state_size(config: Config) -> int:
    """Of a head's keys and of its values in a delta net: files state one size for both."""
    keys, values = (
        config.integer("linear_key_head_dim"),
        config.integer("linear_value_head_dim"),
    )
    if keys != values:
        raise config.fail(
            "linear_value_head_dim",
            f"is {values}, but 'linear_key_head_dim' is {keys}; only heads whose keys and values "
            "have one size can be converted",
        )
    return keys


class _HybridRope(NamedTuple):
    """``dims`` of a head's dimensions turn, at frequencies from ``base``."""

    dims: int
    base: float
    sections: tuple[int, ...]
    yarn: Yarn | None


def _read_rope(config: Config, head_dim: int) -> _HybridRope:
    rope = rope_section(config)
    dims = rotary_dims(rope, head_dim, DEFAULT_PART, beside=config)
    base = rope_base(rope, beside=config)
    sections = tuple(rope.items("mrope_section", int, DEFAULT_SECTIONS))
    if len(sections) > SECTIONS:
        raise rope.fail("mrope_section", f"is {sections}, expected at most {SECTIONS} numbers")
    rope.ignore({"mrope_interleaved": "the positions of text are the same in all sections"})
    stretched = rope_kind(rope, ("default", "yarn")) == "yarn"
    return _HybridRope(dims, base, sections, read_yarn(rope, dims, base) if stretched else None)
