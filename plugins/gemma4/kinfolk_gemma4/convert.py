"""Converts a Hugging Face checkpoint to a GGUF file."""

from __future__ import annotations

from typing import Final, NamedTuple

from kinfolk.convert.checkpoint import Config, HFCheckpoint
from kinfolk.convert.config_keys import is_tied, text_model
from kinfolk.convert.plan import Conversion
from kinfolk.convert.rope import rope_base, rope_kind
from kinfolk.convert.tokenizer import character_level
from kinfolk_gemma4.layout import (
    ARCHITECTURE,
    EMBEDDING,
    HEAD,
    AttentionShape,
    Gemma4Shape,
    metadata,
    tensors,
)
from kinfolk_gemma4.text import LINES, VISIBLE

MODEL_TYPES: Final = ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text")
"""Model types of the multimodal wrappers, and of their text models."""

KEPT_TYPES: Final = {"per_layer_model_proj.weight": "BF16"}
"""Tensors with a fixed type: small ones that every layer reads are kept at higher precision."""

_FULL, _LOCAL = "full_attention", "sliding_attention"
_PATTERN: Final = 6
_FULL_KEYS, _FULL_DIM = "num_global_key_value_heads", "global_head_dim"
_ROPES, _PART = "rope_parameters", "partial_rotary_factor"
_OTHER_SENSES: Final = ("vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.",
                        "vision_embedder.")  # fmt: skip


def conversion(checkpoint: HFCheckpoint) -> Conversion | None:
    """The conversion of a checkpoint of this family, ``None`` for any other."""
    config = checkpoint.config
    if config.text("model_type", "") not in MODEL_TYPES:
        return None
    text = text_model(config, MODEL_TYPES)
    has_head = HEAD in (source_name(name) for name in checkpoint.tensors)
    shape = read_shape(text, tied=is_tied(text, config, has_head=has_head, default=True))
    dropped = {f"model.{part}": "vision and audio have separate files" for part in _OTHER_SENSES}
    for layer in range(shape.owners, shape.layers):
        for part in ("k_proj", "v_proj", "k_norm"):
            dropped[f"model.layers.{layer}.self_attn.{part}."] = "the layer shares another layer's"
    return Conversion(
        architecture=ARCHITECTURE,
        metadata=metadata(shape),
        tensors=tuple(tensors(shape)),
        vocabulary=shape.vocabulary,
        tokenizer=character_level(shape.vocabulary, LINES, VISIBLE),
        dropped=dropped,
        repeated={HEAD: EMBEDDING} if shape.tied else {},
        source_name=source_name,
        group=shape.heads // shape.attention(0).kv_heads,
        type_overrides=KEPT_TYPES,
    )


def source_name(name: str) -> str:
    """The name a tensor has in the text model alone."""
    return name.replace("language_model.", "", 1)


def read_shape(config: Config, *, tied: bool) -> Gemma4Shape:
    """The shape of a configuration. Raises :class:`ConversionError` naming a key whose value the
    file cannot express."""
    config.require("hidden_activation", "gelu_pytorch_tanh", "gelu_pytorch_tanh")
    config.require("attention_bias", False, False)
    # Images may be read in both directions, text may not.
    config.require("use_bidirectional_attention", "vision", None)
    windowed = _windowed(config)
    keys_as_values = config.flag("attention_k_eq_v", False)
    full, local = _ropes(config)
    experts, top_k, expert_width = _experts(config)
    shape = Gemma4Shape(
        vocabulary=config.integer("vocab_size"),
        hidden=config.integer("hidden_size"),
        context=config.integer("max_position_embeddings"),
        heads=config.integer("num_attention_heads"),
        full=_full_attention(config, windowed, full.base, keys_as_values),
        local=AttentionShape(
            config.integer("num_key_value_heads"), config.integer("head_dim"), local.base
        ),
        window=config.integer("sliding_window"),
        windowed=windowed,
        feed_forward=config.integer("intermediate_size"),
        shared=_count(config, "num_kv_shared_layers"),
        double_wide=config.flag("use_double_wide_mlp", False),
        keys_as_values=keys_as_values,
        input_width=_count(config, "hidden_size_per_layer_input"),
        experts=experts,
        top_k=top_k,
        expert_width=expert_width,
        rotated=full.part,
        # The key is written even for 0: without it, readers assume 30.
        softcap=config.number("final_logit_softcapping", 0.0),
        epsilon=config.number("rms_norm_eps"),
        tied=tied,
    )
    _check_input_table(config, shape)
    return shape


def _check_input_table(config: Config, shape: Gemma4Shape) -> None:
    key = "vocab_size_per_layer_input"
    if not shape.input_width:
        config.ignore({key: "the model has no per-layer embeddings"})
    elif config.integer(key, shape.vocabulary) != shape.vocabulary:
        raise config.fail(
            key,
            f"is {config.integer(key)}, but 'vocab_size' is {shape.vocabulary}; only equal "
            "ones can be converted",
        )


def _experts(config: Config) -> tuple[int, int, int]:
    """The numbers of experts and of experts of a token, and their width; zeros without experts."""
    keys = ("num_experts", "top_k_experts", "moe_intermediate_size")
    if not config.flag("enable_moe_block", False):
        config.ignore(dict.fromkeys(keys, "'enable_moe_block' is not set"))
        return 0, 0, 0
    experts, top_k, width = (config.integer(key) for key in keys)
    if top_k > experts:
        raise config.fail("top_k_experts", f"is {top_k}, of {experts} experts")
    return experts, top_k, width


class _GemmaRope(NamedTuple):
    """The base of the frequencies, and the part of the pairs that are rotated."""

    base: float
    part: float


def _ropes(config: Config) -> tuple[_GemmaRope, _GemmaRope]:
    """The rope parameters of full and of windowed layers. Defaults are used only if the whole
    section is missing."""
    if _ROPES not in config:
        return _GemmaRope(1e6, 0.25), _GemmaRope(1e4, 1.0)
    stated = config.section(_ROPES)
    full, local = stated.section(_FULL), stated.section(_LOCAL)
    rope_kind(local, ("default",))
    local.require(_PART, 1.0, 1.0)
    part = 1.0
    if rope_kind(full, ("default", "proportional")) == "default":
        full.require(_PART, 1.0, 1.0)
    else:
        full.require("factor", 1.0, 1.0)
        part = full.number(_PART, 1.0)
    if not 0 <= part <= 1:
        raise full.fail(_PART, f"is {part}, expected a number from 0 to 1")
    return _GemmaRope(rope_base(full), part), _GemmaRope(rope_base(local), 1.0)


def _windowed(config: Config) -> tuple[bool, ...]:
    """Whether each layer is windowed; the last one never is, whatever the configuration says."""
    layers = config.layers()
    default = [_LOCAL if number % _PATTERN else _FULL for number in range(1, layers + 1)]
    kinds = config.per_layer("layer_types", (_FULL, _LOCAL), default)
    return (*(kind == _LOCAL for kind in kinds[:-1]), False)


def _full_attention(
    config: Config, windowed: tuple[bool, ...], base: float, keys_as_values: bool
) -> AttentionShape:
    """The heads of full layers, which are stated layer by layer, or in keys of their own."""
    usual = config.integer("num_key_value_heads")
    if "per_layer_config" not in config:
        if not keys_as_values:
            config.ignore({_FULL_KEYS: "used with 'attention_k_eq_v' only"})
        kv_heads = config.integer(_FULL_KEYS, usual) if keys_as_values else usual
        return AttentionShape(kv_heads, config.integer(_FULL_DIM, 512), base)
    config.ignore(dict.fromkeys((_FULL_KEYS, _FULL_DIM), "'per_layer_config' states it"))
    stated = config.section("per_layer_config")
    layers = [stated.section(str(index)) for index, flag in enumerate(windowed) if not flag]
    kinds = {
        AttentionShape(
            layer.integer("num_key_value_heads", usual),
            layer.integer("head_dim", config.integer("head_dim")),
            base,
        )
        for layer in layers
    }
    if len(kinds) > 1:
        raise config.fail(
            "per_layer_config",
            "gives full-attention layers different heads, by 'head_dim' or 'num_key_value_heads'; "
            "'layer_types' says which layers these are",
        )
    return kinds.pop()


def _count(config: Config, key: str) -> int:
    return config.integer(key, 0, minimum=0)
