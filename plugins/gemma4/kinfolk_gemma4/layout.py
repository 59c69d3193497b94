"""The layout of the family's files: sizes, metadata keys, tensors and the source of each.

Names of sources are those of the text model in ``transformers``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from kinfolk.convert.feed_forward import gated_mlp
from kinfolk.convert.plan import TensorRecipe, Transform, recipe

ARCHITECTURE: Final = "gemma4"
HEAD: Final = "lm_head.weight"
EMBEDDING: Final = "model.embed_tokens.weight"
NO_ROTATION: Final = 1e30
"""Divisor of the frequencies of pairs that are not rotated."""

_NORMS: Final = (
    ("attn_norm", "input_layernorm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
)
_EXPERT_NORMS: Final = (
    ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
    ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
    ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The heads of one kind of layer."""

    kv_heads: int
    head_dim: int
    rope_base: float


@dataclass(frozen=True, slots=True)
class Gemma4Shape:
    """The sizes of one model.

    ``windowed`` has a flag for each layer. The last ``shared`` layers read the keys and values of
    others; with ``double_wide`` their feed-forward network is twice as wide. ``keys_as_values``:
    full layers have no value projection. ``unused_keys``: layers that share keys still have key
    projections, as in files made from the first checkpoints. ``rotated`` is the part of a full
    layer's pairs that are rotated.
    """

    vocabulary: int
    hidden: int
    context: int
    heads: int
    full: AttentionShape
    local: AttentionShape
    window: int
    windowed: tuple[bool, ...]
    feed_forward: int
    shared: int = 0
    double_wide: bool = False
    keys_as_values: bool = False
    input_width: int = 0
    experts: int = 0
    top_k: int = 0
    expert_width: int = 0
    rotated: float = 0.25
    softcap: float = 30.0
    epsilon: float = 1e-6
    tied: bool = True
    unused_keys: bool = False

    @property
    def layers(self) -> int:
        return len(self.windowed)

    @property
    def owners(self) -> int:
        """The number of layers with keys and values of their own; these come first."""
        return self.layers - self.shared

    def attention(self, layer: int) -> AttentionShape:
        return self.local if self.windowed[layer] else self.full

    def width(self, layer: int) -> int:
        """Channels of the feed-forward network."""
        return self.feed_forward * (2 if self.double_wide and layer >= self.owners else 1)


def metadata(shape: Gemma4Shape) -> dict[str, object]:
    """The architecture's keys in file order, without prefix."""
    layers = range(shape.layers)
    kv_heads = [shape.attention(layer).kv_heads for layer in layers]
    widths = [shape.width(layer) for layer in layers]
    keys: dict[str, object] = {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "feed_forward_length": np.array(widths, np.int32) if shape.double_wide else widths[0],
        "attention.head_count": shape.heads,
        "attention.head_count_kv": (
            np.array(kv_heads, np.int32) if len(set(kv_heads)) > 1 else kv_heads[0]
        ),
        "rope.freq_base": shape.full.rope_base,
        "rope.freq_base_swa": shape.local.rope_base,
        "attention.layer_norm_rms_epsilon": shape.epsilon,
    }
    if shape.experts:
        keys |= {"expert_count": shape.experts, "expert_used_count": shape.top_k}
    keys |= {
        "attention.key_length": shape.full.head_dim,
        "attention.value_length": shape.full.head_dim,
        "final_logit_softcapping": shape.softcap,
        "attention.sliding_window": shape.window,
        "attention.shared_kv_layers": shape.shared,
        "embedding_length_per_layer_input": shape.input_width,
        "attention.sliding_window_pattern": np.array(shape.windowed, np.bool_),
        "attention.key_length_swa": shape.local.head_dim,
        "attention.value_length_swa": shape.local.head_dim,
    }
    if shape.experts:
        keys["expert_feed_forward_length"] = shape.expert_width
    return keys | {
        "rope.dimension_count": shape.full.head_dim,
        "rope.dimension_count_swa": shape.local.head_dim,
    }


def rope_factors(shape: Gemma4Shape) -> tuple[float, ...]:
    """Divisors of the frequencies of full layers: 1 for the first pairs, which are rotated, and
    ``NO_ROTATION`` for the others."""
    pairs = shape.full.head_dim // 2
    turning = int(shape.full.head_dim * shape.rotated / 2)
    return (1.0,) * turning + (NO_ROTATION,) * (pairs - turning)


def tensors(shape: Gemma4Shape) -> Iterator[TensorRecipe]:
    """Recipes of all tensors in file order."""
    h, v, p = shape.hidden, shape.vocabulary, shape.input_width
    if not all(shape.windowed):
        factors = np.array(rope_factors(shape), np.float32)
        constant = Transform(lambda: factors, rowwise=False)
        yield TensorRecipe("rope_freqs.weight", factors.shape, (), constant)
    if not shape.tied:
        yield recipe("output.weight", HEAD, v, h)
    yield recipe("token_embd.weight", EMBEDDING, v, h)
    inputs = shape.layers * p
    if p:
        yield recipe(
            "per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight", v, inputs
        )
    for layer in range(shape.layers):
        yield from _layer(shape, layer)
    yield recipe("output_norm.weight", "model.norm.weight", h)
    if p:
        yield recipe(
            "per_layer_model_proj.weight", "model.per_layer_model_projection.weight", inputs, h
        )
        yield recipe("per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight", p)


def _layer(shape: Gemma4Shape, layer: int) -> Iterator[TensorRecipe]:
    file, source = f"blk.{layer}.", f"model.layers.{layer}."
    h, p = shape.hidden, shape.input_width
    norms: tuple[tuple[str, str], ...] = _NORMS
    if shape.experts:
        norms += _EXPERT_NORMS
        yield from _experts(shape, file, source)
    yield recipe(f"{file}layer_output_scale.weight", f"{source}layer_scalar", 1)
    yield from gated_mlp(file, f"{source}mlp.", h, shape.width(layer))
    if p:
        norms += (("post_norm", "post_per_layer_input_norm"),)
        yield recipe(f"{file}inp_gate.weight", f"{source}per_layer_input_gate.weight", p, h)
        yield recipe(f"{file}proj.weight", f"{source}per_layer_projection.weight", h, p)
    for name, norm in norms:
        yield recipe(f"{file}{name}.weight", f"{source}{norm}.weight", h)
    yield from _attention(shape, layer, file, f"{source}self_attn.")


def _attention(shape: Gemma4Shape, layer: int, file: str, source: str) -> Iterator[TensorRecipe]:
    h, kind = shape.hidden, shape.attention(layer)
    q, kv = shape.heads * kind.head_dim, kind.kv_heads * kind.head_dim
    if layer < shape.owners or shape.unused_keys:
        yield recipe(f"{file}attn_k_norm.weight", f"{source}k_norm.weight", kind.head_dim)
        yield recipe(f"{file}attn_k.weight", f"{source}k_proj.weight", kv, h)
        if shape.windowed[layer] or not shape.keys_as_values:
            yield recipe(f"{file}attn_v.weight", f"{source}v_proj.weight", kv, h)
    yield recipe(f"{file}attn_output.weight", f"{source}o_proj.weight", h, q)
    yield recipe(f"{file}attn_q_norm.weight", f"{source}q_norm.weight", kind.head_dim)
    yield recipe(f"{file}attn_q.weight", f"{source}q_proj.weight", q, h)


def _experts(shape: Gemma4Shape, file: str, source: str) -> Iterator[TensorRecipe]:
    """The tensors of experts; gate and up matrices stay fused, gate rows first."""
    e, h, i = shape.experts, shape.hidden, shape.expert_width
    yield recipe(f"{file}ffn_down_exps.weight", f"{source}experts.down_proj", e, h, i)
    yield recipe(f"{file}ffn_gate_up_exps.weight", f"{source}experts.gate_up_proj", e, 2 * i, h)
    yield recipe(f"{file}ffn_down_exps.scale", f"{source}router.per_expert_scale", e)
    yield recipe(f"{file}ffn_gate_inp.weight", f"{source}router.proj.weight", e, h)
    yield recipe(f"{file}ffn_gate_inp.scale", f"{source}router.scale", h)
