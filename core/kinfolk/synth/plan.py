"""Plans a synthetic model file: its tensors, metadata and size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from kinfolk.descriptors import Family, ReleasedShape
from kinfolk.door import ask_each
from kinfolk.errors import UnsupportedModelError
from kinfolk.gguf.file_types import MIXES, TypeMix, choose_types
from kinfolk.gguf.output import OutputTensor
from kinfolk.gguf.tensor_types import TENSOR_TYPES
from kinfolk.synth.blocks import FILLS
from kinfolk.synth.vocabulary import tokenizer_keys

_NORM_RANGE: Final = (0.9, 1.1)
_TYPES: Final = {kind.name: (number, kind) for number, kind in TENSOR_TYPES.items()}


@dataclass(frozen=True, slots=True)
class SynthTensor:
    """A tensor: its ``kind`` of blocks, and for vectors the ``range`` of its numbers, or these.

    The numbers of a matrix [n, K] have mean 0 and variance 1 / K, so that its products with
    normalised vectors have variance 1.
    """

    layout: OutputTensor
    kind: str
    range: tuple[float, float] | None
    constants: tuple[float, ...] | None = None

    @property
    def deviation(self) -> float:
        return float(self.layout.shape[-1] ** -0.5)


@dataclass(frozen=True, slots=True)
class SynthPlan:
    """A file to be written. ``nbytes`` counts the bytes of all tensors."""

    shape: ReleasedShape
    layers: int
    mix: str
    tensors: tuple[SynthTensor, ...]
    metadata: Mapping[str, object]

    @property
    def nbytes(self) -> int:
        return sum(tensor.layout.nbytes for tensor in self.tensors)

    @property
    def parameters(self) -> int:
        return sum(prod(tensor.layout.shape) for tensor in self.tensors)

    @property
    def types(self) -> Mapping[str, int]:
        """Number of tensors by type."""
        return Counter(tensor.kind for tensor in self.tensors)


def find_shape(name: str, families: Iterable[Family]) -> ReleasedShape:
    """The released shape called ``name``, in any case. Raises with the names there are."""
    found = ask_each(families, lambda family: family.shapes())
    shapes = {shape.name.lower(): shape for _, some in found for shape in some}
    if name.lower() not in shapes:
        known = ", ".join(sorted(shapes)) or "none"
        raise UnsupportedModelError(
            f"no installed family has a released shape {name!r}; choose one of: {known}"
        )
    return shapes[name.lower()]


def plan_synthetic(shape: ReleasedShape, *, layers: int = 0, mix: str = "") -> SynthPlan:
    """Plan a file of ``layers`` layers, as many as released if 0.

    ``mix`` names one of the shape's own mixes or a stock one; the shape's first if empty. Raises
    :class:`UnsupportedModelError` for a name that is neither.
    """
    layers = layers or shape.layers
    if layers < 1:
        raise UnsupportedModelError(f"a model of {layers} layers cannot be written; give 1 or more")
    chosen = _mix(shape, mix)
    outline = shape.outline(layers)
    kinds = choose_types(outline.tensors, chosen, group=outline.group)
    tensors = tuple(
        SynthTensor(
            _layout(name, size, kinds[name]),
            kinds[name],
            _range(name, size, outline.ranges),
            outline.constants.get(name),
        )
        for name, size in outline.tensors
    )
    plan = SynthPlan(shape, layers, chosen.name, tensors, {})
    general: dict[str, object] = {
        "general.architecture": shape.architecture,
        "general.type": "model",
        "general.name": f"Synthetic {shape.name}",
        "general.size_label": _size_label(plan.parameters),
        "general.file_type": chosen.file_type,
        "general.quantization_version": 2,
    }
    own = {f"{shape.architecture}.{key}": value for key, value in outline.metadata.items()}
    metadata = general | own | dict(tokenizer_keys(shape.vocabulary))
    return SynthPlan(shape, layers, chosen.name, tensors, metadata)


def _mix(shape: ReleasedShape, name: str) -> TypeMix:
    known = {**MIXES, **shape.mixes}
    if not name:
        return next(iter(shape.mixes.values()), MIXES["q4_k_m"])
    if name.lower() not in known:
        raise UnsupportedModelError(
            f"unknown type mix {name!r}; choose one of: {', '.join([*shape.mixes, *MIXES])}"
        )
    return known[name.lower()]


def _layout(name: str, shape: tuple[int, ...], kind: str) -> OutputTensor:
    if kind not in FILLS:
        raise UnsupportedModelError(f"random blocks of type {kind} cannot be made")
    number, layout = _TYPES[kind]
    return OutputTensor(name, shape, number, prod(shape) // layout.block * layout.bytes)


def _range(
    name: str, shape: tuple[int, ...], ranges: Mapping[str, tuple[float, float]]
) -> tuple[float, float] | None:
    local = name.split(".", 2)[2] if name.startswith("blk.") else name
    return ranges.get(local, _NORM_RANGE) if len(shape) == 1 else None


def _size_label(parameters: int) -> str:
    """``27B``, ``752M``: to two or three digits."""
    for unit, size in (("B", 1e9), ("M", 1e6)):
        if parameters >= size:
            return f"{parameters / size:.3g}{unit}"
    return f"{parameters / 1e3:.3g}K"
