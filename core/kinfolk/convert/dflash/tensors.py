"""The tensors of a DFlash file in layout B, made from those of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from kinfolk.convert.dflash.shape import FUSED_QKV, DFlashShape
from kinfolk.convert.feed_forward import gated_mlp
from kinfolk.convert.plan import (
    AS_STORED,
    FloatArray,
    Shape,
    Source,
    TensorRecipe,
    Transform,
    recipe,
)
from kinfolk.convert.transforms import then
from kinfolk.spec.dflash import layouts

DRAFT_IDS: Final = "d2t"

DROPPED: Final = {
    "t2d": "says which tokens the reduced vocabulary has, which d2t says too",
    "verifier_norm.": "the target's own",
    "verifier_lm_head.": "the target's own",
    "rotary_emb.": "computed from the configuration",
}

_RENAMED: Final = (
    (re.compile(r"^model\."), ""),
    (re.compile(r"^encoder\.fc\."), "fc."),
    (re.compile(r"^encoder\.output_norm_enc\."), "hidden_norm."),
    (re.compile(r"^aux_hidden_norm\."), "aux_hidden_norms."),
    (re.compile(r"_codebook\.weight$"), "_codebook"),
)
_FEATURE_NORM: Final = "aux_hidden_norms.{}.weight"
_TOP: Final = {
    layouts.FC: "fc.weight",
    layouts.CONTEXT_NORM: "hidden_norm.weight",
    layouts.OUTPUT_NORM: "norm.weight",
    layouts.EMBEDDING_TENSOR: "embed_tokens.weight",
    layouts.HEAD_TENSOR: "lm_head.weight",
    "selector_predecessor.weight": "candidate_selector.predecessor_codebook",
    "selector_successor.weight": "candidate_selector.successor_codebook",
    layouts.SELECTOR_HIDDEN: "candidate_selector.hidden_projection.weight",
}


def source_name(name: str) -> str:
    """The authors' name of a tensor that has another one in some exports."""
    for pattern, replacement in _RENAMED:
        name = pattern.sub(replacement, name)
    return name


def has_feature_norms(stored: Mapping[str, Shape]) -> bool:
    return _FEATURE_NORM.format(0) in stored


def recipes(shape: DFlashShape, stored: Mapping[str, Shape]) -> tuple[TensorRecipe, ...]:
    """All tensors in file order; ``stored`` are the shapes of the checkpoint's by their names."""
    return tuple(_recipes(shape, stored))


def _recipes(shape: DFlashShape, stored: Mapping[str, Shape]) -> Iterator[TensorRecipe]:
    h = shape.hidden
    sizes: dict[str, Shape] = {
        layouts.FC: (h, len(shape.feature_layers) * h),
        layouts.CONTEXT_NORM: (h,),
        layouts.OUTPUT_NORM: (h,),
    }
    for name in (layouts.EMBEDDING_TENSOR, layouts.HEAD_TENSOR):
        # A table that is there counts; its number of rows is checked against d2t and the target.
        if _TOP[name] in stored:
            sizes[name] = (stored[_TOP[name]][0], h)
    if shape.selector is not None:
        rank = shape.selector[0]
        for name in layouts.SELECTOR:
            sizes[name] = (stored.get(_TOP[name], (shape.vocabulary,))[0], rank)
        sizes[layouts.SELECTOR_HIDDEN] = (rank, h)
    for name, size in sizes.items():
        yield recipe(name, _TOP[name], *size)
    if has_feature_norms(stored):
        sources = [Source(_FEATURE_NORM.format(k), (h,)) for k in range(len(shape.feature_layers))]
        size = (len(sources), h)
        yield TensorRecipe(layouts.FEATURE_NORMS, size, tuple(sources), stacked=True)
    for layer in range(shape.layers):
        yield from _layer(shape, stored, f"blk.{layer}.", f"layers.{layer}.")


def _layer(
    shape: DFlashShape, stored: Mapping[str, Shape], file: str, source: str
) -> Iterator[TensorRecipe]:
    h, d = shape.hidden, shape.head_dim
    yield recipe(f"{file}attn_norm.weight", f"{source}input_layernorm.weight", h)
    yield from _projections(shape, stored, file, source)
    yield recipe(
        f"{file}attn_output.weight", f"{source}self_attn.o_proj.weight", h, shape.heads * d
    )
    order = _halves(1, d) if shape.interleaved else AS_STORED
    for name in ("q_norm", "k_norm"):
        yield recipe(
            f"{file}attn_{name}.weight", f"{source}self_attn.{name}.weight", d, transform=order
        )
    gate = f"{source}self_attn.g_proj.weight"
    if gate in stored:
        yield recipe(f"{file}attn_gate.weight", gate, stored[gate][0], h)
    yield recipe(f"{file}ffn_norm.weight", f"{source}post_attention_layernorm.weight", h)
    yield from gated_mlp(file, f"{source}mlp.", h, shape.feed_forward)
    if shape.convolution is not None:
        taps, group = shape.convolution
        for part, name in (("attn", "attention_conv"), ("ffn", "mlp_conv")):
            yield recipe(f"{file}{part}_conv_base", f"{source}{name}.base_kernel", 2, taps, h)
            yield recipe(
                f"{file}{part}_conv_proj.weight",
                f"{source}{name}.kernel_projection.weight",
                *(2 * taps * (h // group), h),
            )


def _projections(
    shape: DFlashShape, stored: Mapping[str, Shape], file: str, source: str
) -> Iterator[TensorRecipe]:
    """Queries, keys and values, which may be one tensor in this order."""
    h, d = shape.hidden, shape.head_dim
    fused, start = f"{source}{FUSED_QKV}", 0
    total = (shape.heads + 2 * shape.kv_heads) * d
    for name, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
        rows = heads * d
        order = _halves(heads, d) if shape.interleaved and name != "v" else AS_STORED
        target = f"{file}attn_{name}.weight"
        if fused in stored:
            part = then(_rows(start, start + rows), order)
            yield recipe(target, fused, rows, h, transform=part, stored=(total, h))
        else:
            yield recipe(target, f"{source}self_attn.{name}_proj.weight", rows, h, transform=order)
        start += rows


def _rows(start: int, stop: int) -> Transform:
    return Transform(lambda array: array[start:stop], rowwise=False)


def _halves(heads: int, dim: int) -> Transform:
    """Neighbouring rows of a head become halves: row 2i and 2i + 1 -> i and i + dim / 2."""

    def apply(rows: FloatArray) -> FloatArray:
        pairs = rows.reshape(heads, dim // 2, 2, -1)
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)

    return Transform(apply, rowwise=False)
