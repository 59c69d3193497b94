"""Converts a Hugging Face checkpoint of an assistant to a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from kinfolk.convert.checkpoint import TIED, Config, HFCheckpoint
from kinfolk.convert.config_keys import text_model
from kinfolk.convert.plan import Conversion
from kinfolk.errors import ConversionError
from kinfolk_gemma4.assistant.config import ARCHITECTURE, CLUSTERS
from kinfolk_gemma4.assistant.layout import ORDERING, AssistantShape, metadata, tensors
from kinfolk_gemma4.convert import MODEL_TYPES, read_shape
from kinfolk_gemma4.layout import EMBEDDING, HEAD

_KINDS: Final = ("gemma4_assistant", "gemma4_unified_assistant")
_LAYER_INPUTS: Final = "hidden_size_per_layer_input"


def conversion(checkpoint: HFCheckpoint) -> Conversion | None:
    """The conversion of an assistant, ``None`` for a checkpoint of something else. Its tokenizer is
    the target's."""
    config = checkpoint.config
    if config.text("model_type", "") not in _KINDS:
        return None
    shape = _shape(config)
    dropped, integers = {}, {}
    if shape.centroids:
        dropped[ORDERING] = "written as integers"
        integers[CLUSTERS] = _clusters(checkpoint, shape)
    return Conversion(
        architecture=ARCHITECTURE,
        metadata=metadata(shape),
        tensors=tuple(tensors(shape)),
        vocabulary=shape.inner.vocabulary,
        tokenizer=_no_keys,
        dropped=dropped,
        repeated={HEAD: EMBEDDING},
        group=shape.inner.heads // shape.inner.attention(0).kv_heads,
        integers=integers,
    )


def _no_keys(directory: Path) -> Mapping[str, object]:
    return {}


def _shape(config: Config) -> AssistantShape:
    text = text_model(config, MODEL_TYPES)
    # The file has one table, which is the head: embeddings are the target's.
    for part in (config, text):
        part.require(TIED, True, True)
    text.require(_LAYER_INPUTS, 0, 0)
    for key in ("enable_moe_block", "use_double_wide_mlp"):
        text.require(key, False, False)
    inner = read_shape(text, tied=True)
    inner = replace(inner, shared=inner.layers)
    target_width = config.integer("backbone_hidden_size")
    keys = ("num_centroids", "centroid_intermediate_top_k")
    if not config.flag("use_ordered_embeddings", False):
        config.ignore(dict.fromkeys(keys, "'use_ordered_embeddings' is not set"))
        return AssistantShape(inner, target_width)
    centroids, best = (config.integer(key) for key in keys)
    if inner.vocabulary % centroids:
        raise config.fail(
            keys[0], f"is {centroids}, which does not divide the {inner.vocabulary} tokens"
        )
    if best > centroids:
        raise config.fail(keys[1], f"is {best}, of {centroids} clusters in {keys[0]!r}")
    return AssistantShape(inner, target_width, centroids, best)


def _clusters(checkpoint: HFCheckpoint, shape: AssistantShape) -> npt.NDArray[np.int64]:
    """The tokens cluster by cluster."""
    if ORDERING not in checkpoint.tensors:
        raise ConversionError(
            f"{checkpoint.directory}: tensor {ORDERING!r} is missing, though "
            "'use_ordered_embeddings' is set"
        )
    # Tokens are below 2^24, so float32 holds them exactly.
    tokens = checkpoint.read(ORDERING).astype(np.int64).reshape(-1)
    vocabulary = shape.inner.vocabulary
    if not np.array_equal(np.sort(tokens), np.arange(vocabulary)):
        raise ConversionError(
            f"{checkpoint.tensors[ORDERING].path}: tensor {ORDERING!r} lists {len(tokens)} tokens, "
            f"expected each of {vocabulary} once"
        )
    return tokens
