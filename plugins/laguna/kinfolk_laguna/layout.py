"""The layout of the family's files: metadata keys and tensors of a model of given sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from kinfolk.config import Yarn
from kinfolk.convert.feed_forward import ExpertSizes, gated_mlp, is_fused, routed_experts
from kinfolk.convert.plan import TensorRecipe, recipe
from kinfolk.convert.rope import yarn_keys

ARCHITECTURE: Final = "laguna"
_SIGMOID: Final = 2


@dataclass(frozen=True, slots=True)
class RopeSizes:
    """``rotary``: dimensions of a head that are rotated; ``base`` of the frequencies."""

    rotary: int
    base: float


@dataclass(frozen=True, slots=True)
class LagunaSizes:
    """The sizes of one model.

    The first ``dense`` layers have a feed-forward network of ``feed_forward`` channels. The others
    have ``routed`` experts, of which a token uses ``top_k``, and a shared one of ``shared``
    channels. ``gates``: the number of gates of a head, for each layer: 1, or one for each element.
    """

    vocabulary: int
    hidden: int
    context: int
    heads: tuple[int, ...]
    kv_heads: int
    head_dim: int
    gates: tuple[int, ...]
    windowed: tuple[bool, ...]
    window: int
    rope: RopeSizes
    window_rope: RopeSizes
    yarn: Yarn | None
    dense: int
    feed_forward: int
    routed: ExpertSizes
    top_k: int
    shared: int
    scale: float
    epsilon: float = 1e-6
    tied: bool = False

    @property
    def layers(self) -> int:
        return len(self.heads)


def metadata(sizes: LagunaSizes) -> dict[str, object]:
    """The architecture's keys in file order, without prefix."""
    keys: dict[str, object] = {
        "block_count": sizes.layers,
        "context_length": sizes.context,
        "embedding_length": sizes.hidden,
        "feed_forward_length": sizes.feed_forward,
        "attention.head_count": np.array(sizes.heads, np.int32),
        "attention.head_count_kv": sizes.kv_heads,
        **yarn_keys(sizes.yarn),
        "rope.freq_base": sizes.rope.base,
        "attention.layer_norm_rms_epsilon": sizes.epsilon,
        "expert_count": sizes.routed.experts,
        "expert_used_count": sizes.top_k,
        "attention.key_length": sizes.head_dim,
        "attention.value_length": sizes.head_dim,
        "vocab_size": sizes.vocabulary,
        "expert_feed_forward_length": sizes.routed.width,
        "expert_shared_feed_forward_length": sizes.shared,
        "expert_weights_norm": True,
        "expert_weights_scale": sizes.scale,
        "expert_gating_func": _SIGMOID,
        "leading_dense_block_count": sizes.dense,
        "rope.dimension_count": sizes.rope.rotary,
    }
    if any(sizes.windowed):
        keys |= {
            "attention.sliding_window": sizes.window,
            # For readers that do not derive it from the period.
            "attention.sliding_window_pattern": np.array(sizes.windowed),
            "rope.freq_base_swa": sizes.window_rope.base,
            "rope.dimension_count_swa": sizes.window_rope.rotary,
        }
    return keys


def tensors(sizes: LagunaSizes, names: Collection[str] = ()) -> Iterator[TensorRecipe]:
    """Recipes of all tensors in file order; ``names`` are those of the checkpoint."""
    table = (sizes.vocabulary, sizes.hidden)
    if not sizes.tied:
        yield recipe("output.weight", "lm_head.weight", *table)
    yield recipe("token_embd.weight", "model.embed_tokens.weight", *table)
    for layer in range(sizes.layers):
        file, source = f"blk.{layer}.", f"model.layers.{layer}."
        yield recipe(f"{file}attn_norm.weight", f"{source}input_layernorm.weight", sizes.hidden)
        if layer < sizes.dense:
            yield from gated_mlp(file, f"{source}mlp.", sizes.hidden, sizes.feed_forward)
        else:
            yield from _experts(sizes, file, f"{source}mlp.", names)
        norm = f"{source}post_attention_layernorm.weight"
        yield recipe(f"{file}ffn_norm.weight", norm, sizes.hidden)
        yield from _attention(sizes, layer, file, f"{source}self_attn.")
    yield recipe("output_norm.weight", "model.norm.weight", sizes.hidden)


def _experts(
    sizes: LagunaSizes, file: str, source: str, names: Collection[str]
) -> Iterator[TensorRecipe]:
    routed, experts = sizes.routed, f"{source}experts."
    yield from routed_experts(file, experts, routed, fused=is_fused(names, experts))
    bias = f"{experts}e_score_correction_bias"
    yield recipe(f"{file}exp_probs_b.bias", bias, routed.experts)
    router = (routed.experts, routed.hidden)
    yield recipe(f"{file}ffn_gate_inp.weight", f"{source}gate.weight", *router)
    yield from gated_mlp(file, f"{source}shared_expert.", routed.hidden, sizes.shared, "_shexp")


def _attention(sizes: LagunaSizes, layer: int, file: str, source: str) -> Iterator[TensorRecipe]:
    hidden, dim = sizes.hidden, sizes.head_dim
    query, kv = sizes.heads[layer] * dim, sizes.kv_heads * dim
    gates = sizes.heads[layer] * sizes.gates[layer]
    yield recipe(f"{file}attn_gate.weight", f"{source}g_proj.weight", gates, hidden)
    yield recipe(f"{file}attn_k_norm.weight", f"{source}k_norm.weight", dim)
    yield recipe(f"{file}attn_k.weight", f"{source}k_proj.weight", kv, hidden)
    yield recipe(f"{file}attn_output.weight", f"{source}o_proj.weight", hidden, query)
    yield recipe(f"{file}attn_q_norm.weight", f"{source}q_norm.weight", dim)
    yield recipe(f"{file}attn_q.weight", f"{source}q_proj.weight", query, hidden)
    yield recipe(f"{file}attn_v.weight", f"{source}v_proj.weight", kv, hidden)
