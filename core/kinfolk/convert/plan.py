"""Conversion plan of a family: tensor recipes and metadata, which the driver executes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kinfolk.checked import Checked

FloatArray = npt.NDArray[np.float32]
IntegerArray = npt.NDArray[np.int64]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transform(Checked):
    """From the arrays of the sources to the array of the file, all float32.

    ``rowwise`` says that rows ``a:b`` of the result depend on rows ``a:b`` of the sources alone,
    so that a large tensor can be converted a few rows at a time.
    """

    apply: Callable[..., FloatArray]
    rowwise: bool = True


AS_STORED = Transform(lambda array: array)


@dataclass(frozen=True, slots=True)
class Source(Checked):
    """A tensor of the checkpoint and the shape it must have."""

    name: str
    shape: Shape


@dataclass(frozen=True, slots=True)
class TensorRecipe(Checked):
    """One tensor of the file: its name and shape in torch order, and what it is made from.

    ``stacked``: its matrices along the first dimension are the sources, one each.
    """

    name: str
    shape: Shape
    sources: tuple[Source, ...]
    transform: Transform = AS_STORED
    stacked: bool = False


def recipe(
    name: str,
    source: str,
    *shape: int,
    transform: Transform = AS_STORED,
    stored: Shape | None = None,
) -> TensorRecipe:
    """A tensor made from one source, which has the same shape unless ``stored`` says otherwise."""
    return TensorRecipe(name, shape, (Source(source, stored or shape),), transform)


TokenizerReader = Callable[[Path], Mapping[str, object]]
"""From the directory of a model to its ``tokenizer.*`` keys in file order."""


@dataclass(frozen=True, slots=True)
class Conversion(Checked):
    """Everything about one checkpoint of a family.

    ``metadata`` holds the keys of the architecture in file order, without its prefix.
    ``tensors`` come in file order. ``dropped`` maps prefixes of names of the checkpoint to the
    reason why they have no place in the file; a tensor that is neither used nor dropped is an
    error. ``repeated`` maps names of tensors that have no place either to the tensor they must be
    equal to. ``source_name`` maps the names of the checkpoint to those used here. ``group`` query
    heads share a key head. ``type_overrides`` maps names of tensors without ``blk.N.`` to the type
    they get in a quantised file, whatever its mix. ``integers`` are vectors that the file holds as
    they are here, int64 by name.
    """

    architecture: str
    metadata: Mapping[str, object]
    tensors: tuple[TensorRecipe, ...]
    vocabulary: int
    tokenizer: TokenizerReader
    dropped: Mapping[str, str] = field(default_factory=dict)
    repeated: Mapping[str, str] = field(default_factory=dict)
    source_name: Callable[[str], str] = field(default=lambda name: name)
    group: int = 1
    type_overrides: Mapping[str, str] = field(default_factory=dict)
    integers: Mapping[str, Any] = field(default_factory=dict)
