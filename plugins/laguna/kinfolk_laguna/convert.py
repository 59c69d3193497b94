"""Converts a Hugging Face checkpoint of the family to a GGUF file."""

from __future__ import annotations

from typing import Final

from kinfolk.config import Yarn
from kinfolk.convert.checkpoint import TIED, Config, HFCheckpoint
from kinfolk.convert.config_keys import pass_over_common
from kinfolk.convert.feed_forward import ExpertSizes
from kinfolk.convert.plan import Conversion
from kinfolk.convert.rope import read_yarn, rope_base, rope_kind, rotary_dims
from kinfolk.convert.tokenizer import byte_level
from kinfolk_laguna.layout import ARCHITECTURE, LagunaSizes, RopeSizes, metadata, tensors
from kinfolk_laguna.text import PRETOKENIZERS

MODEL_TYPE: Final = "laguna"

_FULL, _WINDOWED = "full_attention", "sliding_attention"
_DENSE, _SPARSE = "dense", "sparse"
_PER_HEAD, _PER_ELEMENT = "per-head", "per-element"
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"

_NO_WINDOWS: Final = "no layer has a window"

_USUAL: Final = {
    "hidden_act": "silu",
    "attention_bias": False,
    "qkv_bias": False,
    "moe_apply_router_weight_on_input": False,
    "moe_router_logit_softcapping": 0.0,
    "moe_router_use_sigmoid": True,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "swa_attention_sink_enabled": False,
    "rope_style": "rotate-half",
}

# Names in memory, and the different names on disk.
_SPELLINGS: Final = {
    ".mlp.gate.e_score_correction_bias": ".mlp.experts.e_score_correction_bias",
    ".mlp.shared_experts.": ".mlp.shared_expert.",
}


def conversion(checkpoint: HFCheckpoint) -> Conversion | None:
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
        repeated={_HEAD: _EMBEDDING} if sizes.tied else {},
        source_name=source_name,
        group=min(sizes.heads) // sizes.kv_heads,
    )


def source_name(name: str) -> str:
    """The name of a tensor on disk."""
    for spelling, canonical in _SPELLINGS.items():
        name = name.replace(spelling, canonical)
    return name


def read_sizes(config: Config) -> LagunaSizes:
    """The sizes of a configuration. Raises :class:`ConversionError` naming a key whose value the
    file cannot express."""
    pass_over_common(config)
    config.require_usual(_USUAL)
    layers, head_dim = config.layers(), config.integer("head_dim")
    windowed = tuple(
        kind == _WINDOWED
        for kind in config.per_layer("layer_types", (_FULL, _WINDOWED), [_FULL] * layers)
    )
    rope, window_rope, yarn = _ropes(config, head_dim, windowed)
    hidden, experts = config.integer("hidden_size"), config.integer("num_experts")
    top_k = config.integer("num_experts_per_tok")
    if top_k > experts:
        raise config.fail("num_experts_per_tok", f"is {top_k}, of {experts} experts")
    return LagunaSizes(
        vocabulary=config.integer("vocab_size"),
        hidden=hidden,
        context=config.integer("max_position_embeddings"),
        heads=_heads(config, layers),
        kv_heads=config.integer("num_key_value_heads"),
        head_dim=head_dim,
        gates=_gates(config, layers, head_dim),
        windowed=windowed,
        window=_window(config, windowed),
        rope=rope,
        window_rope=window_rope,
        yarn=yarn,
        dense=_dense(config, layers),
        feed_forward=config.integer("intermediate_size"),
        routed=ExpertSizes(experts, hidden, config.integer("moe_intermediate_size")),
        top_k=top_k,
        shared=config.integer("shared_expert_intermediate_size"),
        scale=config.number("moe_routed_scaling_factor", 1.0),
        epsilon=config.number("rms_norm_eps"),
        tied=config.flag(TIED, False),
    )


def _window(config: Config, windowed: tuple[bool, ...]) -> int:
    if any(windowed):
        return config.integer("sliding_window")
    config.ignore({"sliding_window": _NO_WINDOWS})
    return 0


def _heads(config: Config, layers: int) -> tuple[int, ...]:
    key, kv_heads = "num_attention_heads_per_layer", config.integer("num_key_value_heads")
    heads = config.items(key, int, [])
    if heads:
        config.ignore({"num_attention_heads": f"'{key}' states them layer by layer"})
    else:
        heads = [config.integer("num_attention_heads")] * layers
    if len(heads) != layers:
        raise config.fail(key, f"has {len(heads)} entries for {layers} layers")
    if any(count < 1 or count % kv_heads for count in heads):
        raise config.fail(
            "num_key_value_heads", f"is {kv_heads}, of which {heads} heads are no multiples"
        )
    return tuple(heads)


def _gates(config: Config, layers: int, head_dim: int) -> tuple[int, ...]:
    """The number of gates of a head, for each layer."""
    known = {_PER_HEAD: 1, _PER_ELEMENT: head_dim}
    if "gating_types" in config:
        kinds = config.per_layer("gating_types", known, ())
        config.ignore({"gating": "'gating_types' states it layer by layer"})
        return tuple(known[kind] for kind in kinds)
    return (config.choice("gating", {True: 1, **known}, 1),) * layers


def _dense(config: Config, layers: int) -> int:
    """The number of dense layers, which come before all layers with experts."""
    kinds = config.per_layer(
        "mlp_layer_types", (_DENSE, _SPARSE), [_DENSE] + [_SPARSE] * (layers - 1)
    )
    count = kinds.index(_SPARSE) if _SPARSE in kinds else layers
    if kinds != [_DENSE] * count + [_SPARSE] * (layers - count):
        raise config.fail(
            "mlp_layer_types",
            f"is not a number of {_DENSE!r} layers followed by {_SPARSE!r} ones",
        )
    # Older configurations state the same in these keys.
    dense = list(range(count))
    config.require("mlp_only_layers", dense, dense)
    return count


def _ropes(
    config: Config, head_dim: int, windowed: tuple[bool, ...]
) -> tuple[RopeSizes, RopeSizes, Yarn | None]:
    """The rope sizes of full and of windowed layers, and the context extension of full layers."""
    parameters = config.section("rope_parameters")
    full, narrow = parameters, parameters
    if _FULL in parameters or _WINDOWED in parameters:
        full, narrow = parameters.section(_FULL), parameters.section(_WINDOWED)
    _pass_over_beside(config, (full, narrow) if any(windowed) else (full,))
    rope = _rope(full, head_dim)
    stretched = rope_kind(full, ("default", "yarn")) == "yarn"
    yarn = read_yarn(full, rope.rotary, rope.base) if stretched else None
    if not any(windowed):
        parameters.ignore({_WINDOWED: _NO_WINDOWS})
        return rope, rope, yarn
    if narrow is full:
        raise config.fail("rope_parameters", f"has no {_WINDOWED!r}")
    rope_kind(narrow, ("default",))
    return rope, _rope(narrow, head_dim), yarn


def _pass_over_beside(config: Config, ropes: tuple[Config, ...]) -> None:
    """Mark top-level values as read if every section has its own; refuse a section without one.

    Whether a section without a value inherits the top-level one depends on the version of
    transformers.
    """
    for key in ("rope_theta", "partial_rotary_factor"):
        for rope in ropes:
            if key in config and key not in rope:
                raise rope.fail(key, f"is missing, while '{key}' stands beside it; state it here")
        config.ignore({key: "every kind of layer states its own"})


def _rope(rope: Config, head_dim: int) -> RopeSizes:
    return RopeSizes(rotary_dims(rope, head_dim), rope_base(rope))
