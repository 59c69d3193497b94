"""The weight plan, for the variants of files that converters write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kinfolk.errors import ModelFormatError
from kinfolk.gguf.inventory import Inventory
from kinfolk.plans import WeightPlan, WeightSpec
from kinfolk_gemma4.config import Gemma4Config

_SHARED: Final = "the layer reads the keys and values of another layer"
_OTHER_SENSES: Final = "vision or audio part; text only here"
_NEEDS_EXPERTS: Final = "blk.0.ffn_gate_inp.weight"


def weight_plan(config: Gemma4Config, inventory: Inventory) -> WeightPlan:
    """The weights of the model. Raises :class:`ModelFormatError` if the file has experts that the
    metadata does not mention."""
    if _NEEDS_EXPERTS in inventory and not config.experts:
        raise ModelFormatError(
            f"tensor {_NEEDS_EXPERTS!r} chooses experts, but the metadata has no "
            f"{config.architecture}.expert_count; convert the model again",
            path=inventory.path,
            key=_NEEDS_EXPERTS,
        )
    weights = list(_around_layers(config, inventory))
    for layer in range(config.layers):
        weights += layer_weights(config, inventory, layer)
    return WeightPlan(tuple(weights), _ignored(config, inventory))


def layer_weights(config: Gemma4Config, inventory: Inventory, layer: int) -> Iterator[WeightSpec]:
    """The weights of one layer."""
    yield from _attention(config, inventory, layer)
    yield from _feed_forward(config, inventory, layer)


def makes_values_from_keys(config: Gemma4Config, inventory: Inventory) -> bool:
    """Whether no full-attention layer has a value projection; windowed layers always have one."""
    own = [
        layer
        for layer in range(config.layers)
        if config.owns_keys(layer) and not config.windowed[layer]
    ]
    return not any(f"blk.{layer}.{part}.weight" in inventory
                   for layer in own for part in ("attn_v", "attn_qkv"))  # fmt: skip


def _around_layers(config: Gemma4Config, inventory: Inventory) -> Iterator[WeightSpec]:
    width, table = config.width, (config.vocabulary, config.width)
    yield WeightSpec("token_embd.weight", table, "embedding")
    tied = "output.weight" not in inventory
    yield WeightSpec("output.weight", table, source="token_embd.weight" if tied else "")
    yield WeightSpec("output_norm.weight", (width,), "vector")
    if config.has_full_layers:
        yield WeightSpec("rope_freqs.weight", (config.rope.dims // 2,), "vector")
    if config.input_width:
        inputs = config.layers * config.input_width
        yield WeightSpec("per_layer_token_embd.weight", (config.vocabulary, inputs), "embedding")
        yield WeightSpec("per_layer_model_proj.weight", (inputs, width))
        yield WeightSpec("per_layer_proj_norm.weight", (config.input_width,), "vector")


def _attention(config: Gemma4Config, inventory: Inventory, layer: int) -> Iterator[WeightSpec]:
    block, width, dim = f"blk.{layer}.", config.width, config.head_dim[layer]
    q, kv = config.heads[layer] * dim, config.kv_heads[layer] * dim
    owns = config.owns_keys(layer)
    parts = [("attn_q", q)]
    if owns:
        parts.append(("attn_k", kv))
        if config.windowed[layer] or not makes_values_from_keys(config, inventory):
            parts.append(("attn_v", kv))
    fused = f"{block}attn_qkv.weight"
    start = 0
    for name, rows in parts:
        if fused in inventory:
            span = (start, start + rows)
            yield WeightSpec(f"{block}{name}.weight", (rows, width), source=fused, rows=span)
        else:
            yield WeightSpec(f"{block}{name}.weight", (rows, width))
        start += rows
    yield WeightSpec(f"{block}attn_output.weight", (width, q))
    yield WeightSpec(f"{block}attn_norm.weight", (width,), "vector")
    yield WeightSpec(f"{block}attn_q_norm.weight", (dim,), "vector")
    if owns:
        yield WeightSpec(f"{block}attn_k_norm.weight", (dim,), "vector")
    yield WeightSpec(f"{block}post_attention_norm.weight", (width,), "vector")


def _feed_forward(config: Gemma4Config, inventory: Inventory, layer: int) -> Iterator[WeightSpec]:
    block, width, inner = f"blk.{layer}.", config.width, config.feed_forward[layer]
    norms = ["ffn_norm", "post_ffw_norm"]
    yield WeightSpec(f"{block}ffn_gate.weight", (inner, width))
    yield WeightSpec(f"{block}ffn_up.weight", (inner, width))
    yield WeightSpec(f"{block}ffn_down.weight", (width, inner))
    if config.experts:
        norms += ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"]
        yield from _experts(config, inventory, layer)
    if config.input_width:
        norms.append("post_norm")
        yield WeightSpec(f"{block}inp_gate.weight", (config.input_width, width))
        yield WeightSpec(f"{block}proj.weight", (width, config.input_width))
    for name in norms:
        yield WeightSpec(f"{block}{name}.weight", (width,), "vector")
    if f"{block}layer_output_scale.weight" in inventory:
        yield WeightSpec(f"{block}layer_output_scale.weight", (1,), "vector")


def _experts(config: Gemma4Config, inventory: Inventory, layer: int) -> Iterator[WeightSpec]:
    block, width, inner = f"blk.{layer}.", config.width, config.expert_width
    experts = config.experts[layer]
    yield WeightSpec(f"{block}ffn_gate_inp.weight", (experts, width), "vector")
    yield WeightSpec(f"{block}ffn_gate_inp.scale", (width,), "vector")
    if f"{block}ffn_gate_exps.weight" in inventory:
        for name in ("ffn_gate_exps", "ffn_up_exps"):
            yield WeightSpec(f"{block}{name}.weight", (experts, inner, width), "experts")
    else:
        stack = (experts, 2 * inner, width)
        yield WeightSpec(f"{block}ffn_gate_up_exps.weight", stack, "experts")
    yield WeightSpec(f"{block}ffn_down_exps.weight", (experts, width, inner), "experts")
    if f"{block}ffn_down_exps.scale" in inventory:
        yield WeightSpec(f"{block}ffn_down_exps.scale", (experts,), "vector")


def _ignored(config: Gemma4Config, inventory: Inventory) -> dict[str, str]:
    shared = {
        f"blk.{layer}.{part}.weight": _SHARED
        for layer in range(config.layers)
        if not config.owns_keys(layer)
        for part in ("attn_k", "attn_v", "attn_k_norm")
    }
    other = {name: _OTHER_SENSES for name in inventory if name.startswith(("v.", "mm.", "a."))}
    return shared | other
