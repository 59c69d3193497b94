"""What a family declares about its weights and its state: pure data, no torch.

A :class:`WeightPlan` says which tensors of the file become which weights; the loader executes it.
A :class:`StatePlan` says what one sequence keeps, layer by layer; allocation, paging, sharing and
checkpoints follow from it alone, so a family writes no cache code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from kinfolk.dtypes import DtypeName
from kinfolk.types import CHUNK_POSITIONS

# -- weights --------------------------------------------------------------------------------------

Role = Literal["matrix", "vector", "embedding", "experts"]


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """One weight of the model.

    ``name`` is how the model asks for it, ``source`` the tensor in the file (``name`` if empty),
    ``rows`` the half-open range of its leading dimension when the file stores several weights in
    one tensor. ``shape`` is the logical torch shape, rows first. ``role`` decides where it may
    live: vectors are kept in float32, matrices, embeddings and experts may stay quantised.
    """

    name: str
    shape: tuple[int, ...]
    role: Role = "matrix"
    source: str = ""
    rows: tuple[int, int] | None = None

    @property
    def tensor(self) -> str:
        return self.source or self.name


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """All weights of a model. Every tensor of the file is used or ignored for a stated reason.

    ``ignored`` maps tensor names to the reason they are left alone. A tensor of the file that is
    in neither is an error in a layer that has weights here, and mentioned in a warning elsewhere;
    a weight whose tensor is missing is an error.
    """

    weights: tuple[WeightSpec, ...]
    ignored: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[WeightSpec]:
        return iter(self.weights)


# -- state ----------------------------------------------------------------------------------------

StorageFormat = Literal["f32", "f16", "bf16", "q8_0", "q4_0"]
Rotation = Literal["none", "hadamard"]


@dataclass(frozen=True, slots=True)
class Codec:
    """How the vectors of a section are stored: number format, and a rotation applied before it."""

    format: StorageFormat = "bf16"
    rotation: Rotation = "none"


@dataclass(frozen=True, slots=True)
class Section:
    """One kind of vector kept for every position: ``heads`` vectors of ``dim`` numbers."""

    name: str
    heads: int
    dim: int
    codec: Codec = Codec()


@dataclass(frozen=True, slots=True)
class Paged:
    """Per-position state in pools of 64-position chunks; ``window`` = positions a row may see."""

    sections: tuple[Section, ...]
    window: int | None = None

    def section(self, name: str) -> Section:
        """Raises :class:`ValueError` if there is none of the name."""
        for section in self.sections:
            if section.name == name:
                return section
        names = ", ".join(section.name for section in self.sections)
        raise ValueError(f"the state has no section {name!r}, only {names}")


@dataclass(frozen=True, slots=True)
class RecurrentTensor:
    """A tensor of fixed size that each sequence owns in a layer."""

    name: str
    shape: tuple[int, ...]
    dtype: DtypeName = "f32"


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Constant-size state that moves forward with the sequence."""

    tensors: tuple[RecurrentTensor, ...]


@dataclass(frozen=True, slots=True)
class Shared:
    """The layer reads the state of ``layer`` and owns none."""

    layer: int


LayerState = Paged | Recurrent | Shared


@dataclass(frozen=True, slots=True)
class StatePlan:
    """What one sequence keeps, one entry a layer."""

    layers: tuple[LayerState, ...]

    def __post_init__(self) -> None:
        for index, layer in enumerate(self.layers):
            if isinstance(layer, Shared) and not (
                0 <= layer.layer < index and isinstance(self.layers[layer.layer], Paged)
            ):
                raise ValueError(
                    f"layer {index} shares the state of layer {layer.layer}, "
                    "which is not an earlier paged layer"
                )

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The distinct windows, full attention first: one pool each."""
        found = {layer.window for layer in self.layers if isinstance(layer, Paged)}
        return tuple(sorted(found, key=lambda window: (window is not None, window or 0)))

    @property
    def has_recurrent(self) -> bool:
        return any(isinstance(layer, Recurrent) for layer in self.layers)

    def storing(self, name: str, codec: Codec) -> StatePlan:
        """The plan with all sections of a name stored by another codec."""

        def stored(layer: LayerState) -> LayerState:
            if not isinstance(layer, Paged):
                return layer
            sections = (replace(s, codec=codec) if s.name == name else s for s in layer.sections)
            return replace(layer, sections=tuple(sections))

        return StatePlan(tuple(map(stored, self.layers)))

    def owner(self, layer: int) -> int:
        """The layer whose state ``layer`` reads: itself unless it shares."""
        entry = self.layers[layer]
        return entry.layer if isinstance(entry, Shared) else layer

    def paged(self, layer: int) -> Paged:
        """The per-position state that ``layer`` reads. Raises :class:`ValueError` if it reads
        none."""
        state = self.layers[self.owner(layer)]
        if not isinstance(state, Paged):
            raise ValueError(f"layer {layer} keeps nothing for each position")
        return state

    def layout_hash(self) -> str:
        """Changes whenever stored bytes would be read differently."""
        text = json.dumps(
            [CHUNK_POSITIONS, [[type(layer).__name__, asdict(layer)] for layer in self.layers]],
            sort_keys=True,
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class StateLimits:
    """What the host asks of the state of one model; counts exclude the dummies.

    ``blocks`` gives the size of each pool in the order of ``StatePlan.windows``.
    """

    slots: int
    checkpoints: int
    blocks: tuple[int, ...]
    context: int
    step_rows: int
    tree_rows: int = 64
    codec: Codec | None = None


# -- residency ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PoolRule:
    """What may leave a pool.

    With a ``window`` chunks leave by themselves once the window has passed them, and only then.
    Without one they may be evicted, except the first ``sink`` and the last ``tail`` of a sequence.
    """

    window: int | None = None
    sink: int = 1
    tail: int = 4


@dataclass(frozen=True, slots=True)
class SlotMapping:
    """How sequences use the pools: one rule each, in the order of ``StatePlan.windows``."""

    rules: tuple[PoolRule, ...]


@dataclass(frozen=True, slots=True)
class ExpertStats:
    """What is known when experts are placed: ``layers`` holds the expert count of each layer (0 =
    no experts); ``counts`` how often each was used, by layer, if that was ever recorded."""

    layers: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Which expert lies in each bay of each layer. An expert in no bay is not resident."""

    bays: tuple[tuple[int, ...], ...]
