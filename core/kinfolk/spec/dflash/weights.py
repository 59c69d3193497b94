"""The weights of a DFlash drafter in a file of either layout. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kinfolk.gguf.inventory import Inventory
from kinfolk.gguf.metadata import Metadata
from kinfolk.plans import Role, WeightPlan, WeightSpec
from kinfolk.spec.dflash.config import DFlashConfig
from kinfolk.spec.dflash.layouts import (
    CONTEXT_NORM,
    DRAFT_IDS,
    EMBEDDING_TENSOR,
    FC,
    FEATURE_NORMS,
    HEAD_TENSOR,
    OUTPUT_NORM,
    ROPE_DIVISORS,
    SELECTOR,
    SELECTOR_HIDDEN,
    FileLayout,
    layout_of,
)

_IGNORED: Final = {DRAFT_IDS: "read with the configuration, as integers"}


def feature_norm(index: int) -> str:
    """The name of the norm of the features of feature layer ``index``."""
    return f"{FEATURE_NORMS}.{index}"


def weight_plan(config: DFlashConfig, meta: Metadata, inventory: Inventory) -> WeightPlan:
    """All weights, by their names in layout B, with the tensors of the file that they are in."""
    layout = layout_of(meta, inventory)
    shapes = dict(_shapes(config))
    vectors = {name for name, shape in shapes.items() if len(shape) == 1}
    weights = [
        WeightSpec(
            name,
            shape,
            _role(name, name in vectors),
            source=layout.tensor(inventory, name).name,
        )
        for name, shape in shapes.items()
    ]
    return WeightPlan((*weights, *_feature_norms(config, layout)), _ignored(inventory))


def _ignored(inventory: Inventory) -> Mapping[str, str]:
    return {name: reason for name, reason in _IGNORED.items() if name in inventory}


def _role(name: str, is_vector: bool) -> Role:
    if is_vector or name.endswith("_conv_base"):
        return "vector"
    return "embedding" if name in (EMBEDDING_TENSOR, *SELECTOR) else "matrix"


def _shapes(config: DFlashConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    h = config.width
    yield FC, (h, config.feature_count * h)
    yield CONTEXT_NORM, (h,)
    yield OUTPUT_NORM, (h,)
    if config.own_embedding:
        assert config.vocabulary is not None
        yield EMBEDDING_TENSOR, (config.vocabulary, h)
    if config.own_head:
        assert config.head_rows is not None
        yield HEAD_TENSOR, (config.head_rows, h)
    if config.rope_divisors:
        yield ROPE_DIVISORS, (config.rope.dims // 2,)
    for layer in range(len(config.layers)):
        yield from _layer(config, f"blk.{layer}.")
    if config.selector is not None:
        assert config.vocabulary is not None
        for name in SELECTOR:
            yield name, (config.vocabulary, config.selector.rank)
        yield SELECTOR_HIDDEN, (config.selector.rank, h)


def _layer(config: DFlashConfig, block: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    h, d = config.width, config.head_dim
    queries, keys = config.heads * d, config.kv_heads * d
    yield f"{block}attn_norm.weight", (h,)
    yield f"{block}ffn_norm.weight", (h,)
    yield f"{block}attn_q.weight", (queries, h)
    yield f"{block}attn_k.weight", (keys, h)
    yield f"{block}attn_v.weight", (keys, h)
    yield f"{block}attn_output.weight", (h, queries)
    yield f"{block}attn_q_norm.weight", (d,)
    yield f"{block}attn_k_norm.weight", (d,)
    if config.gate != "none":
        yield f"{block}attn_gate.weight", (config.heads if config.gate == "head" else queries, h)
    yield f"{block}ffn_gate.weight", (config.feed_forward, h)
    yield f"{block}ffn_up.weight", (config.feed_forward, h)
    yield f"{block}ffn_down.weight", (h, config.feed_forward)
    if config.convolution is not None:
        taps, groups = config.convolution.taps, h // config.convolution.group
        for part in ("attn", "ffn"):
            yield f"{block}{part}_conv_base", (2, taps, h)
            yield f"{block}{part}_conv_proj.weight", (2 * taps * groups, h)


def _feature_norms(config: DFlashConfig, layout: FileLayout) -> Iterator[WeightSpec]:
    """One norm for each feature layer; layout B stores them as rows of one tensor."""
    if not config.feature_norms:
        return
    for index in range(config.feature_count):
        name, shape = feature_norm(index), (config.width,)
        if layout.feature_norms:
            yield WeightSpec(name, shape, "vector", source=layout.feature_norms.format(index))
        else:
            rows = (index, index + 1)
            yield WeightSpec(name, (1, *shape), "vector", source=FEATURE_NORMS, rows=rows)
