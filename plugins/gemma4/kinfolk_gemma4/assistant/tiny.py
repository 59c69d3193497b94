"""A small assistant of random weights, for the checks of the conformance kit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.output import GGUFOutput, OutputTensor
from kinfolk.gguf.values import ByteArray
from kinfolk_gemma4.assistant.config import ARCHITECTURE, CLUSTERS
from kinfolk_gemma4.assistant.layout import AssistantShape, metadata, tensors
from kinfolk_gemma4.layout import rope_factors
from kinfolk_gemma4.tiny import SHAPE as TARGET

_F32: Final = 0
_I32: Final = 26

SHAPE: Final = AssistantShape(
    replace(
        TARGET,
        hidden=32,
        windowed=(True, True, False),
        feed_forward=96,
        shared=3,
        input_width=0,
        experts=0,
        top_k=0,
        expert_width=0,
        unused_keys=False,
    ),
    target_width=TARGET.hidden,
    centroids=20,
    best_clusters=3,
)
"""Two layers read the target's last windowed layer, and one its last full layer."""


def write(target: Path, path: Path) -> None:
    """Write an assistant's file for the tiny model of the family in the file ``target``."""
    with GGUFFile.open(target) as file:
        vocabulary = len(file.metadata.strings("tokenizer.ggml.tokens"))
    shape = replace(SHAPE, inner=replace(SHAPE.inner, vocabulary=vocabulary))
    keys = {**metadata(shape), "vocab_size": vocabulary}
    described: dict[str, object] = {"general.architecture": ARCHITECTURE}
    described |= {f"{ARCHITECTURE}.{key}": value for key, value in keys.items()}
    source = np.random.default_rng(0)
    arrays = {recipe.name: _numbers(shape, recipe.name, recipe.shape, source)
              for recipe in tensors(shape)}  # fmt: skip
    arrays[CLUSTERS] = source.permutation(vocabulary).astype("<i4")
    layouts = [
        OutputTensor(name, array.shape, _I32 if name == CLUSTERS else _F32, array.nbytes)
        for name, array in arrays.items()
    ]
    with GGUFOutput(path, described, layouts, overwrite=True) as output:
        for name, array in arrays.items():
            output.write(name, _bytes(array))


def _numbers(
    shape: AssistantShape, name: str, size: tuple[int, ...], source: np.random.Generator
) -> np.ndarray:
    if name == "rope_freqs.weight":
        return np.array(rope_factors(shape.inner), "<f4")
    numbers = source.standard_normal(size)
    numbers = 1 + 0.3 * numbers if len(size) == 1 else numbers * size[1] ** -0.5
    return numbers.astype("<f4")


def _bytes(array: np.ndarray) -> ByteArray:
    return array.reshape(-1).view(np.uint8)
