"""The layout of an assistant's file: sizes, metadata keys, tensors and the source of each.

Names of sources are those of the assistant in ``transformers``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kinfolk.convert.plan import TensorRecipe, recipe
from kinfolk_gemma4 import layout
from kinfolk_gemma4.assistant.config import (
    BEST_CLUSTERS,
    CENTROIDS,
    INPUTS,
    OUTPUTS,
    TARGET_WIDTH,
)
from kinfolk_gemma4.layout import Gemma4Shape

ORDERING: Final = "masked_embedding.token_ordering"
"""The tokens cluster by cluster, in a checkpoint."""


@dataclass(frozen=True, slots=True)
class AssistantShape:
    """The sizes of one assistant: those of its layers, all of which share keys and values, and the
    width of its target. ``centroids``: clusters of tokens, of which ``best_clusters`` are read for
    a row; 0 = the head is dense."""

    inner: Gemma4Shape
    target_width: int
    centroids: int = 0
    best_clusters: int = 0


def metadata(shape: AssistantShape) -> dict[str, object]:
    """The architecture's keys in file order, without prefix."""
    keys = layout.metadata(shape.inner)
    # The assistant's logits have no softcap, though its text configuration states one.
    del keys["final_logit_softcapping"]
    keys[TARGET_WIDTH] = shape.target_width
    keys["nextn_predict_layers"] = shape.inner.layers
    if shape.centroids:
        keys[BEST_CLUSTERS] = shape.best_clusters
    return keys


def tensors(shape: AssistantShape) -> Iterator[TensorRecipe]:
    """Recipes of all tensors in file order, but the list of clusters, which holds integers."""
    width, target = shape.inner.hidden, shape.target_width
    yield from layout.tensors(shape.inner)
    yield recipe(INPUTS, "pre_projection.weight", width, 2 * target)
    yield recipe(OUTPUTS, "post_projection.weight", target, width)
    if shape.centroids:
        yield recipe(CENTROIDS, "masked_embedding.centroids.weight", shape.centroids, width)
