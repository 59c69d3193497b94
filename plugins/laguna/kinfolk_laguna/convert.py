"""From a Hugging Face checkpoint of the family to a GGUF file."""

from __future__ import annotations

from typing import Final

from kinfolk.config import Yarn
from kinfolk.convert.checkpoint import Checkpoint, Config
from kinfolk.convert.feed_forward import ExpertSizes
from kinfolk.convert.plan import Conversion
from kinfolk.convert.tokenizer import byte_level
from kinfolk_laguna.layout import ARCHITECTURE, LagunaSizes, RopeSizes, metadata, tensors
from kinfolk_laguna.text import PRETOKENIZERS

MODEL_TYPE: Final = "laguna"

_FULL, _WINDOWED = "full_attention", "sliding_attention"
_DENSE, _SPARSE = "dense", "sparse"
_PER_HEAD, _PER_ELEMENT = "per-head", "per-element"
_HEAD: Final = "lm_head.weight"

# Names in memory and on disk differ; these are the ones on disk.
_SPELLINGS: Final = {
    ".mlp.gate.e_score_correction_bias": ".mlp.experts.e_score_correction_bias",
    ".mlp.shared_experts.": ".mlp.shared_expert.",
}


def conversion(checkpoint: Checkpoint) -> Conversion | None:
    """The conversion of a checkpoint of this family, ``None`` for any other."""
    config = checkpoint.config
    if config.text("model_type", "") != MODEL_TYPE:
        return None
    sizes = read_sizes(config)
    return Conversion(
        architecture=ARCHITECTURE,
        metadata=metadata(sizes),
        tensors=tuple(tensors(sizes, {source_name(name) for name in checkpoint.tensors})),
        vocabulary=sizes.vocabulary,
        tokenizer=byte_level(sizes.vocabulary, PRETOKENIZERS, names_turn_end=True),
        dropped={_HEAD: "the output matrix is the embedding"} if sizes.tied else {},
        source_name=source_name,
        group=min(sizes.heads) // sizes.kv_heads,
    )


def source_name(name: str) -> str:
    """The name a tensor has on disk."""
    for spelling, canonical in _SPELLINGS.items():
        name = name.replace(spelling, canonical)
    return name


def read_sizes(config: Config) -> LagunaSizes:
    """Raises :class:`ConversionError` for what the file could not express."""
    config.require("hidden_act", "silu", "silu")
    config.require("attention_bias", False, False)
    config.require("moe_apply_router_weight_on_input", False, False)
    config.require("moe_router_logit_softcapping", 0.0, 0.0)
    layers, head_dim = config.layers(), config.integer("head_dim")
    windowed = tuple(kind == _WINDOWED for kind in _kinds(config, layers))
    rope, window_rope, yarn = _ropes(config, head_dim, windowed)
    hidden = config.integer("hidden_size")
    return LagunaSizes(
        vocabulary=config.integer("vocab_size"),
        hidden=hidden,
        context=config.integer("max_position_embeddings"),
        heads=_heads(config, layers),
        kv_heads=config.integer("num_key_value_heads"),
        head_dim=head_dim,
        gates=_gates(config, layers, head_dim),
        windowed=windowed,
        window=config.integer("sliding_window") if any(windowed) else 0,
        rope=rope,
        window_rope=window_rope,
        yarn=yarn,
        dense=_dense(config, layers),
        feed_forward=config.integer("intermediate_size"),
        routed=ExpertSizes(
            config.integer("num_experts"), hidden, config.integer("moe_intermediate_size")
        ),
        top_k=config.integer("num_experts_per_tok"),
        shared=config.integer("shared_expert_intermediate_size"),
        scale=config.number("moe_routed_scaling_factor", 1.0),
        epsilon=config.number("rms_norm_eps"),
        tied=config.flag("tie_word_embeddings", False),
    )


def _per_layer(config: Config, key: str, layers: int, known: set[str], default: str) -> list[str]:
    kinds = config.items(key, str, [default] * layers)
    if len(kinds) != layers or not set(kinds) <= known:
        raise config.fail(
            key,
            f"has {len(kinds)} entries of the kinds {sorted(set(kinds))}, expected {layers} of "
            f"{' and '.join(map(repr, sorted(known)))}",
        )
    return kinds


def _kinds(config: Config, layers: int) -> list[str]:
    return _per_layer(config, "layer_types", layers, {_FULL, _WINDOWED}, _FULL)


def _heads(config: Config, layers: int) -> tuple[int, ...]:
    key = "num_attention_heads_per_layer"
    heads = config.items(key, int, [])
    if not heads:
        heads = [config.integer("num_attention_heads")] * layers
    if len(heads) != layers:
        raise config.fail(key, f"has {len(heads)} entries for {layers} layers")
    return tuple(heads)


def _gates(config: Config, layers: int, head_dim: int) -> tuple[int, ...]:
    """Gates of a head in each layer."""
    known = {_PER_HEAD: 1, _PER_ELEMENT: head_dim}
    if "gating_types" in config:
        kinds = _per_layer(config, "gating_types", layers, set(known), _PER_HEAD)
        return tuple(known[kind] for kind in kinds)
    return (config.choice("gating", {True: 1, **known}, 1),) * layers


def _dense(config: Config, layers: int) -> int:
    """How many layers come before the first with experts; after it all have some."""
    kinds = config.items("mlp_layer_types", str, [_DENSE] + [_SPARSE] * (layers - 1))
    count = kinds.index(_SPARSE) if _SPARSE in kinds else layers
    if kinds != [_DENSE] * count + [_SPARSE] * (layers - count):
        raise config.fail(
            "mlp_layer_types",
            f"is not a number of {_DENSE!r} layers followed by {_SPARSE!r} ones, {layers} in all",
        )
    return count


def _ropes(
    config: Config, head_dim: int, windowed: tuple[bool, ...]
) -> tuple[RopeSizes, RopeSizes, Yarn | None]:
    """Of full and of windowed layers; only the former know context extension."""
    parameters = config.section("rope_parameters")
    full, narrow = parameters, parameters
    if _FULL in parameters or _WINDOWED in parameters:
        full, narrow = parameters.section(_FULL), parameters.section(_WINDOWED)
    rope = _rope(full, head_dim)
    if not any(windowed):
        return rope, rope, _yarn(full)
    if narrow is full:
        raise config.fail("rope_parameters", f"has no {_WINDOWED!r}")
    narrow.require("rope_type", "default", "default")
    return rope, _rope(narrow, head_dim), _yarn(full)


def _rope(config: Config, head_dim: int) -> RopeSizes:
    rotary = int(head_dim * config.number("partial_rotary_factor", 1.0))
    return RopeSizes(rotary, config.number("rope_theta"))


def _yarn(config: Config) -> Yarn | None:
    kind = config.text("rope_type", "default")
    if kind == "default":
        return None
    if kind != "yarn":
        raise config.fail("rope_type", f"is {kind!r}; only 'default' and 'yarn' can be converted")
    for key in ("mscale", "mscale_all_dim"):
        config.require(key, None, None)
    config.require("truncate", True, True)
    stated = "attention_factor" in config
    return Yarn(
        factor=config.number("factor"),
        original_context=config.integer("original_max_position_embeddings"),
        beta_fast=config.number("beta_fast", 32.0),
        beta_slow=config.number("beta_slow", 1.0),
        magnitude=config.number("attention_factor") if stated else None,
    )
