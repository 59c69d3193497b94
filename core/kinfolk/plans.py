"""Plans of a family's weights and state: pure data, no torch.

A :class:`WeightPlan` maps tensors of the file to weights; the loader executes it. A
:class:`StatePlan` lists the state of one sequence, layer by layer; allocation, paging, sharing and
checkpoints follow from it, so a family writes no cache code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from kinfolk.checked import Checked
from kinfolk.dtypes import DtypeName
from kinfolk.types import CHUNK_POSITIONS

# -- weights --------------------------------------------------------------------------------------

Role = Literal["matrix", "vector", "embedding", "experts"]


@dataclass(frozen=True, slots=True)
class WeightSpec(Checked):
    """One weight of the model.

    ``name`` is the model's name of it, ``source`` the tensor in the file (``name`` if empty),
    ``rows`` the half-open range of its leading dimension if the file stores several weights in
    one tensor. ``shape`` is the logical torch shape, rows first. ``role`` decides the storage:
    vectors are float32, while matrices, embeddings and experts may stay quantised.
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
class WeightPlan(Checked):
    """All weights of a model. Every tensor of the file is used, or ignored for a stated reason.

    ``ignored`` maps names of unused tensors to the reason. A tensor of the file that is neither
    used nor ignored is an error if its layer has weights here, otherwise a warning. A weight whose
    tensor is missing is an error.
    """

    weights: tuple[WeightSpec, ...]
    ignored: Mapping[str, str] = field(default_factory=dict)

    def __iter__(self) -> Iterator[WeightSpec]:
        return iter(self.weights)


# -- state ----------------------------------------------------------------------------------------

StorageFormat = Literal["f32", "f16", "bf16", "q8_0", "q4_0"]
Rotation = Literal["none", "hadamard"]


@dataclass(frozen=True, slots=True)
class Codec(Checked):
    """How the vectors of a section are stored: a rotation, and the format after it."""

    format: StorageFormat = "bf16"
    rotation: Rotation = "none"


@dataclass(frozen=True, slots=True)
class Section(Checked):
    """One part of the state of a position (keys, values): ``heads`` vectors of ``dim`` numbers."""

    name: str
    heads: int
    dim: int
    codec: Codec = Codec()

    def check(self) -> None:
        if self.heads < 1 or self.dim < 1:
            raise ValueError(
                f"section {self.name!r} has {self.heads} heads of dim {self.dim}; "
                "both must be positive"
            )


@dataclass(frozen=True, slots=True)
class Paged(Checked):
    """Per-position state, paged in chunks of 64 positions. ``window``: how many positions a row
    sees, ``None`` = all."""

    sections: tuple[Section, ...]
    window: int | None = None

    def check(self) -> None:
        _check_names("section", self.sections)
        if self.window is not None and self.window < 1:
            raise ValueError(f"the window is {self.window}; it must be positive, or None")

    def section(self, name: str) -> Section:
        """The section called ``name``. Raises :class:`ValueError` if there is none."""
        for section in self.sections:
            if section.name == name:
                return section
        names = ", ".join(section.name for section in self.sections)
        raise ValueError(f"the state has no section {name!r}, only {names}")


@dataclass(frozen=True, slots=True)
class RecurrentTensor(Checked):
    """A tensor of fixed size that each sequence owns in a layer."""

    name: str
    shape: tuple[int, ...]
    dtype: DtypeName = "f32"

    def check(self) -> None:
        if min(self.shape, default=1) < 1:
            raise ValueError(f"tensor {self.name!r} has the shape {self.shape}")


@dataclass(frozen=True, slots=True)
class Recurrent(Checked):
    """Recurrent state: tensors of fixed size that advance with the sequence."""

    tensors: tuple[RecurrentTensor, ...]

    def check(self) -> None:
        _check_names("tensor", self.tensors)


@dataclass(frozen=True, slots=True)
class Shared(Checked):
    """The layer reads the state of ``layer``, an earlier one, and owns none."""

    layer: int


LayerState = Paged | Recurrent | Shared


def _check_names(kind: str, parts: tuple[Section, ...] | tuple[RecurrentTensor, ...]) -> None:
    names = [part.name for part in parts]
    if not names:
        raise ValueError(f"the state of a layer has no {kind}s")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the state of a layer has two {kind}s {name!r}")


@dataclass(frozen=True, slots=True)
class StatePlan(Checked):
    """The state of one sequence, one entry a layer."""

    layers: tuple[LayerState, ...]

    def check(self) -> None:
        if not self.layers:
            raise ValueError("the state plan has no layers; it has one entry for each layer")
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
        windows = {layer.window for layer in self.layers if isinstance(layer, Paged)}
        return tuple(sorted(windows, key=lambda window: (window is not None, window or 0)))

    @property
    def has_recurrent(self) -> bool:
        return any(isinstance(layer, Recurrent) for layer in self.layers)

    def storing(self, name: str, codec: Codec) -> StatePlan:
        """The plan with ``codec`` for all sections called ``name``."""

        def stored(layer: LayerState) -> LayerState:
            if not isinstance(layer, Paged):
                return layer
            sections = (replace(s, codec=codec) if s.name == name else s for s in layer.sections)
            return replace(layer, sections=tuple(sections))

        return StatePlan(tuple(map(stored, self.layers)))

    def owner(self, layer: int) -> int:
        """The layer whose state ``layer`` reads: itself unless it is :class:`Shared`."""
        entry = self.layers[layer]
        return entry.layer if isinstance(entry, Shared) else layer

    def paged(self, layer: int) -> Paged:
        """The per-position state that ``layer`` reads. Raises :class:`ValueError` if it reads
        none."""
        state = self.layers[self.owner(layer)]
        if not isinstance(state, Paged):
            raise ValueError(f"layer {layer} has no per-position state")
        return state

    def layout_hash(self) -> str:
        """A hash of the storage layout: different hashes mean that stored bytes are not
        interchangeable."""
        text = json.dumps(
            [CHUNK_POSITIONS, [[type(layer).__name__, asdict(layer)] for layer in self.layers]],
            sort_keys=True,
        )
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class ScoredLayers:
    """The ``layers`` whose attention scores chunks, and bytes on the device: ``chunk_bytes`` for
    the compressed keys of a chunk, ``slot_bytes`` for the last queries of a slot, ``work_bytes``
    for intermediate results. The queries of so many ``suspended`` sequences are kept too.
    ``exact``: keys are kept in host memory as well, and scores are those of these."""

    layers: tuple[int, ...]
    chunk_bytes: int = 0
    slot_bytes: int = 0
    work_bytes: int = 0
    suspended: int = 0
    exact: bool = False


@dataclass(frozen=True, slots=True)
class StateLimits:
    """Sizes of the state of one model, without the dummies.

    ``context``: positions of a sequence; ``blocks``: size of each pool, in the order of
    ``StatePlan.windows``; ``step_rows``: most rows of a sequence in a step; ``tree_rows``: rows of
    the arena; ``codec``: storage of keys and values; ``host_bytes``: most bytes of host memory for
    what is not on the device, ``None`` = no limit; ``resident``: most chunks of full attention that
    a sequence has on the device, ``None`` = all of them; ``scored``: whose attention chooses these,
    ``None`` = that of no layer; ``spare_slots``: places for recurrent state beyond those of
    sequences and checkpoints, so that a step need not store a checkpoint where another one is
    still being copied to host memory.
    """

    slots: int
    checkpoints: int
    blocks: tuple[int, ...]
    context: int
    step_rows: int
    tree_rows: int = 64
    codec: Codec | None = None
    host_bytes: int | None = None
    resident: int | None = None
    scored: ScoredLayers | None = None
    spare_slots: int = 0

    @property
    def recurrent_slots(self) -> int:
        """Places for recurrent state: the dummy, slots, checkpoints, and spare ones."""
        return 1 + self.slots + self.checkpoints + self.spare_slots

    @property
    def query_slots(self) -> int:
        """Places for the last queries of a sequence: the dummy, slots, and suspended sequences."""
        return 0 if self.scored is None else 1 + self.slots + self.scored.suspended

    @property
    def digests(self) -> int:
        """Places for compressed keys of chunks: enough for all that paged sequences may have at
        once. Each is promised ``resident`` blocks, and has no more chunks than the context."""
        if self.scored is None or not self.resident:
            return 0
        return self.blocks[0] * -(-self.context // CHUNK_POSITIONS) // self.resident


# -- residency ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PoolRule(Checked):
    """Which chunks may leave a pool.

    With a ``window``, chunks leave once the window has passed them, and only then. Without one,
    chunks may be evicted, except the first ``sink`` and the last ``tail`` of a sequence.
    """

    window: int | None = None
    sink: int = 1
    tail: int = 4

    def check(self) -> None:
        if self.sink < 0 or self.tail < 0:
            raise ValueError(f"the rule keeps the first {self.sink} and last {self.tail} chunks")


@dataclass(frozen=True, slots=True)
class SlotMapping(Checked):
    """How sequences use the pools: one rule each, in the order of ``StatePlan.windows``."""

    rules: tuple[PoolRule, ...]


@dataclass(frozen=True, slots=True)
class ExpertStats:
    """Statistics for placing experts. ``layers``: the number of experts of each layer, 0 = none.
    ``counts``: how often each expert was used, by layer; ``None`` = not recorded. ``nbytes``: the
    bytes of an expert's record on the device, by layer; empty = 1 each."""

    layers: tuple[int, ...]
    counts: tuple[tuple[int, ...], ...] | None = None
    nbytes: tuple[int, ...] = ()

    @property
    def record_bytes(self) -> tuple[int, ...]:
        """``nbytes``, or 1 for each layer if that is empty."""
        return self.nbytes or (1,) * len(self.layers)


@dataclass(frozen=True, slots=True)
class Placement(Checked):
    """The expert in each near bay of each layer. An expert in no bay is read from host memory until
    it is fetched. ``pinned``: how many of the first bays of each layer keep their experts; empty =
    none."""

    bays: tuple[tuple[int, ...], ...]
    pinned: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ExpertUse:
    """What the rows of the last ``steps`` steps chose. ``uses``: how many rows chose each expert,
    by layer. ``traffic``: of each layer, the chosen experts of each step that were near, that were
    fetched, and that were read from host memory."""

    steps: int
    uses: tuple[tuple[int, ...], ...]
    traffic: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class ExpertResidency:
    """Where experts were when their use was counted. ``experts``: the number of experts of each
    layer. ``bays``: the expert in each near bay, by layer, -1 = empty. ``pinned``: how many of the
    first bays of each layer keep their experts. ``nbytes``: the bytes of a record, by layer."""

    experts: tuple[int, ...]
    bays: tuple[tuple[int, ...], ...]
    pinned: tuple[int, ...]
    nbytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ExpertSwap(Checked):
    """The ``expert`` takes the near ``bay`` of its ``layer``; whose bay it was is far again."""

    layer: int
    expert: int
    bay: int


@dataclass(frozen=True, slots=True)
class ExpertSwaps(Checked):
    """Swaps in the order in which they are executed."""

    swaps: tuple[ExpertSwap, ...] = ()
