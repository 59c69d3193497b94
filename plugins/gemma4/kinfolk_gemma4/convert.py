"""From a Hugging Face checkpoint to a GGUF file."""

from __future__ import annotations

from typing import Final

from kinfolk.convert.checkpoint import Checkpoint, Config
from kinfolk.convert.plan import Conversion
from kinfolk.convert.tokenizer import character_level
from kinfolk_gemma4.layout import ARCHITECTURE, HEAD, Attention, Gemma4Shape, metadata, tensors
from kinfolk_gemma4.text import LINES, VISIBLE

MODEL_TYPES: Final = ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text")
"""Of the multimodal wrappers, and of their text models alone."""

KEPT_TYPES: Final = {"per_layer_model_proj.weight": "BF16"}
"""Small, and all layers depend on it."""

_FULL, _LOCAL = "full_attention", "sliding_attention"
_PATTERN: Final = 6
_TIED: Final = "tie_word_embeddings"
_OTHER_SENSES: Final = ("vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.",
                        "vision_embedder.")  # fmt: skip


def conversion(checkpoint: Checkpoint) -> Conversion | None:
    """The conversion of a checkpoint of this family, ``None`` for any other."""
    config = checkpoint.config
    if config.text("model_type", "") not in MODEL_TYPES:
        return None
    text = config.section("text_config") if "text_config" in config else config
    shape = read_shape(text, tied=_tied(text, config))
    dropped = {f"model.{part}": "vision and audio are files of their own" for part in _OTHER_SENSES}
    if shape.tied:
        dropped[HEAD] = "the output matrix is the embedding"
    for layer in range(shape.owners, shape.layers):
        for part in ("k_proj", "v_proj", "k_norm"):
            dropped[f"model.layers.{layer}.self_attn.{part}."] = "the layer reads another one's"
    return Conversion(
        architecture=ARCHITECTURE,
        metadata=metadata(shape),
        tensors=tuple(tensors(shape)),
        vocabulary=shape.vocabulary,
        tokenizer=character_level(shape.vocabulary, LINES, VISIBLE),
        dropped=dropped,
        source_name=lambda name: name.replace("language_model.", "", 1),
        group=shape.heads // shape.attention(0).kv_heads,
        type_overrides=KEPT_TYPES,
    )


def read_shape(config: Config, *, tied: bool) -> Gemma4Shape:
    """The shape that a configuration describes; refuses, by key, what the file cannot express."""
    config.require("hidden_activation", "gelu_pytorch_tanh", "gelu_pytorch_tanh")
    config.require("attention_bias", False, False)
    if config.text("use_bidirectional_attention", "vision") == "all":
        raise config.fail("use_bidirectional_attention", "is 'all'; text is read forwards here")
    vocabulary, inputs = config.integer("vocab_size"), _count(config, "hidden_size_per_layer_input")
    if inputs:
        config.require("vocab_size_per_layer_input", vocabulary, vocabulary)
    windowed = _windowed(config)
    heads, keys_as_values = (
        config.integer("num_attention_heads"),
        config.flag("attention_k_eq_v", False),
    )
    rope = config.section("rope_parameters")
    local, full = rope.section(_LOCAL), rope.section(_FULL)
    local.require("rope_type", "default", "default")
    full.require("rope_type", "proportional", "proportional")
    full.require("factor", 1.0, 1.0)
    has_experts = config.flag("enable_moe_block", False)
    return Gemma4Shape(
        vocabulary=vocabulary,
        hidden=config.integer("hidden_size"),
        context=config.integer("max_position_embeddings"),
        heads=heads,
        full=_full_attention(config, windowed, full.number("rope_theta", 1e6), keys_as_values),
        local=Attention(
            config.integer("num_key_value_heads"),
            config.integer("head_dim"),
            local.number("rope_theta", 1e4),
        ),
        window=config.integer("sliding_window"),
        windowed=windowed,
        feed_forward=config.integer("intermediate_size"),
        shared=_count(config, "num_kv_shared_layers"),
        double_wide=config.flag("use_double_wide_mlp", False),
        keys_as_values=keys_as_values,
        input_width=inputs,
        experts=config.integer("num_experts") if has_experts else 0,
        top_k=config.integer("top_k_experts") if has_experts else 0,
        expert_width=config.integer("moe_intermediate_size") if has_experts else 0,
        rotated=full.number("partial_rotary_factor", 0.25),
        # Without the key, readers assume 30.
        softcap=config.number("final_logit_softcapping", 0.0),
        epsilon=config.number("rms_norm_eps"),
        tied=tied,
    )


def _windowed(config: Config) -> tuple[bool, ...]:
    """A flag a layer; the last layer sees everything, whatever the configuration says."""
    layers = config.integer("num_hidden_layers")
    default = [_LOCAL if number % _PATTERN else _FULL for number in range(1, layers + 1)]
    kinds = config.items("layer_types", str, default)
    if len(kinds) != layers or set(kinds) - {_LOCAL, _FULL}:
        raise config.fail(
            "layer_types",
            f"has {len(kinds)} entries of the kinds {sorted(set(kinds))}, expected {layers} of "
            f"{_FULL!r} and {_LOCAL!r}",
        )
    return (*(kind == _LOCAL for kind in kinds[:-1]), False)


def _full_attention(
    config: Config, windowed: tuple[bool, ...], base: float, keys_as_values: bool
) -> Attention:
    """Heads of full layers: stated layer by layer, or beside those of windowed layers."""
    usual = config.integer("num_key_value_heads")
    if "per_layer_config" not in config:
        kv_heads = config.integer("num_global_key_value_heads", usual) if keys_as_values else usual
        return Attention(kv_heads, config.integer("global_head_dim", 512), base)
    stated = config.section("per_layer_config")
    layers = [stated.section(str(index)) for index, flag in enumerate(windowed) if not flag]
    found = {
        Attention(
            layer.integer("num_key_value_heads", usual),
            layer.integer("head_dim", config.integer("head_dim")),
            base,
        )
        for layer in layers
    }
    if len(found) > 1:
        raise config.fail("per_layer_config", "gives full-attention layers different heads")
    return found.pop()


def _count(config: Config, key: str) -> int:
    return config.integer(key, 0, minimum=0)


def _tied(text: Config, wrapper: Config) -> bool:
    """The text model's own word counts most."""
    stated = [part.flag(_TIED) for part in (text, wrapper) if _TIED in part]
    return stated[0] if stated else True
