"""The conversion of a DFlash checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from kinfolk.convert.checkpoint import HFCheckpoint
from kinfolk.convert.dflash.shape import DFlashShape, ShapeReader
from kinfolk.convert.dflash.tensors import (
    DRAFT_IDS,
    DROPPED,
    has_feature_norms,
    recipes,
    source_name,
)
from kinfolk.convert.plan import Conversion, Shape
from kinfolk.convert.rope import yarn_keys
from kinfolk.errors import ConversionError
from kinfolk.spec.dflash.layouts import ARCHITECTURE

_FOREIGN: Final = {
    "markov_head.": "DSpark",
    "confidence_head.": "DSpark",
    "prefix_gru.": "Domino",
    "embed_proj.": "Domino",
}
_MASK_EMBEDDING: Final = "mask_embedding.pt"


def convert(checkpoint: HFCheckpoint) -> Conversion | None:
    """The conversion of a DFlash drafter; ``None`` for a checkpoint of something else.

    A drafter is told by its tensors ``fc`` and ``hidden_norm``, whatever its class is called. Its
    tokenizer is the target's: only the token of masked rows is its own.
    """
    stored = {source_name(name): tensor.shape for name, tensor in checkpoint.tensors.items()}
    if not {"fc.weight", "hidden_norm.weight"} <= stored.keys():
        return None
    _refuse_other_drafters(checkpoint, stored)
    shape = ShapeReader(checkpoint.config, stored).read()
    integers = {}
    if DRAFT_IDS in stored:
        integers[DRAFT_IDS] = _draft_ids(checkpoint, stored, shape)
    mask = {"tokenizer.ggml.mask_token_id": shape.mask_token}

    def tokenizer(directory: Path) -> Mapping[str, object]:
        return mask

    return Conversion(
        architecture=ARCHITECTURE,
        metadata=_metadata(shape, has_feature_norms(stored)),
        tensors=recipes(shape, stored),
        vocabulary=shape.vocabulary,
        tokenizer=tokenizer,
        dropped={**DROPPED, **({DRAFT_IDS: "written as integers"} if integers else {})},
        source_name=source_name,
        group=shape.heads // shape.kv_heads,
        integers=integers,
    )


def _refuse_other_drafters(checkpoint: HFCheckpoint, stored: Mapping[str, Shape]) -> None:
    for name in stored:
        for prefix, kind in _FOREIGN.items():
            if name.startswith(prefix):
                raise ConversionError(
                    f"{checkpoint.directory}: tensor {name!r} is part of a {kind} head, which no "
                    "drafter here has; only plain DFlash and DFlash 2 can be converted"
                )
    if (checkpoint.directory / _MASK_EMBEDDING).exists():
        raise ConversionError(
            f"{checkpoint.directory / _MASK_EMBEDDING}: the drafter has an embedding of its own "
            "for masked rows, which no file can hold; only drafters that use a token of the "
            "vocabulary can be converted"
        )


def _draft_ids(
    checkpoint: HFCheckpoint, stored: Mapping[str, Shape], shape: DFlashShape
) -> npt.NDArray[np.int64]:
    """Tokens of the target by rows of the head; checkpoints hold the distance from the row."""
    name = next(name for name in checkpoint.tensors if source_name(name) == DRAFT_IDS)
    where = f"{checkpoint.tensors[name].path}: tensor {name!r}"
    # Distances are below 2^24, so float32 holds them exactly.
    tokens = checkpoint.read(name).astype(np.int64).reshape(-1)
    tokens += np.arange(len(tokens))
    head = stored.get("lm_head.weight")
    if head is None or head[0] != len(tokens):
        rows = "no head" if head is None else f"a head of {head[0]} rows"
        raise ConversionError(f"{where} lists {len(tokens)} tokens, but the drafter has {rows}")
    most = shape.vocabulary or np.iinfo(np.int32).max
    if tokens.min() < 0 or tokens.max() >= most or len(np.unique(tokens)) < len(tokens):
        raise ConversionError(
            f"{where} leads to {len(tokens)} tokens from {tokens.min()} to {tokens.max()}, "
            f"expected different ones below {most}"
        )
    return tokens


def _metadata(shape: DFlashShape, feature_norms: bool) -> Mapping[str, object]:
    """Keys in file order, without the architecture's prefix."""
    keys: dict[str, object] = {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.hidden,
        "feed_forward_length": shape.feed_forward,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": shape.epsilon,
        "rope.dimension_count": shape.head_dim,
        "rope.freq_base": float(shape.rope_base),
        **yarn_keys(shape.yarn),
        "block_size": shape.block,
        "target_layers": np.array([layer + 1 for layer in shape.feature_layers], np.int32),
    }
    windows = {window for window in shape.windows if window is not None}
    if windows:
        (keys["attention.sliding_window"],) = windows
        keys["attention.sliding_window_pattern"] = [w is not None for w in shape.windows]
    if shape.causal is not None:
        keys["attention.causal"] = shape.causal
    if feature_norms:
        keys["context_kv_layer_norm"] = True
    if shape.activation != "silu":
        keys["hidden_activation"] = shape.activation
    for name, number in shape.scales.items():
        keys[name] = float(number)
    if shape.convolution is not None:
        keys["conv_kernel_size"], keys["conv_group_size"] = shape.convolution
    if shape.selector is not None:
        keys["selector_rank"], keys["selector_top_k"] = shape.selector
    return keys
