"""Loads weights: reads the tensors that a weight plan names and converts them for the model."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch

from kinfolk.experts.cache import ExpertCache, PlacedStack
from kinfolk.gguf.inventory import Inventory
from kinfolk.plans import Placement, WeightPlan
from kinfolk.quant.formats import PLAIN, QuantFormats
from kinfolk.quant.tensor import QuantTensor, dequantize_rows, row_chunks
from kinfolk.weights.expert_records import RecordLoader
from kinfolk.weights.packer import Packer
from kinfolk.weights.pieces import Piece, check_readable, check_unknown, take

if TYPE_CHECKING:
    from kinfolk_kernels.planes import Activations, Planes, PlanesStack

logger = logging.getLogger(__name__)

Weight: TypeAlias = "torch.Tensor | QuantTensor | Planes | PlanesStack"
Loaded: TypeAlias = "Weight | PlacedStack"
Progress = Callable[[int, int, str], None]
"""Called with the bytes done, the bytes in total and the tensor that was finished."""

_MAX_THREADS = 8


class Weights(Mapping[str, Weight]):
    """The weights of one model by the names of its plan.

    ``[name]`` gives a tensor, a :class:`QuantTensor` if quantised bytes were kept, or planes if
    they were repacked. Those of experts may be a :class:`PlacedStack`; ``experts`` are their bays
    and homes. ``packed`` counts the tensors in planes by format, ``refused`` those that
    could not be repacked by format and reason; these are plain numbers.
    """

    def __init__(
        self,
        weights: Mapping[str, Loaded],
        packed: Mapping[str, int] | None = None,
        refused: Mapping[tuple[str, str], int] | None = None,
        experts: ExpertCache | None = None,
    ):
        self._weights = dict(weights)
        self.experts = experts
        self.packed, self.refused = dict(packed or {}), dict(refused or {})

    def __getitem__(self, name: str) -> Weight:
        if name not in self._weights:
            raise KeyError(f"the weight plan has no weight {name}")
        # Stacks of experts that the loader has placed are for ``ExpertStore`` alone.
        return cast(Weight, self._weights[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def tensor(self, name: str) -> torch.Tensor:
        """A weight that must not be quantised, such as a vector."""
        weight = self._weights[name]
        if not isinstance(weight, torch.Tensor):
            raise TypeError(f"weight {name!r} is kept as {_kept_as(weight)}, not as numbers")
        return weight

    def optional(self, name: str) -> torch.Tensor | None:
        """As :meth:`tensor`; ``None`` if the file lacks the weight."""
        return self.tensor(name) if name in self._weights else None

    @property
    def nbytes(self) -> int:
        """Bytes on the device; a tensor with several names counts once."""
        data = [part for weight in self._weights.values() for part in _memory(weight)]
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in data}.values())


def _kept_as(weight: QuantTensor | Planes | PlanesStack | PlacedStack) -> str:
    if isinstance(weight, PlacedStack):
        return "records of experts"
    return weight.format.name if isinstance(weight, QuantTensor) else weight.format


def _memory(weight: Loaded) -> tuple[torch.Tensor, ...]:
    if isinstance(weight, torch.Tensor):
        return (weight,)
    if isinstance(weight, PlacedStack):
        return (weight.experts.near,)
    return (weight.data,) if isinstance(weight, QuantTensor) else weight.tensors


@dataclass(slots=True)
class _Job:
    """A piece on its way into ``out``; ``pending`` tasks still write to it."""

    piece: Piece
    out: torch.Tensor
    pending: int


def load_weights(
    plan: WeightPlan,
    inventory: Inventory,
    formats: QuantFormats,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    keep_quantised: bool = False,
    activations: Activations | None = None,
    progress: Progress | None = None,
    placement: Placement | None = None,
    landing: int = 0,
) -> Weights:
    """Load every weight of ``plan``; everything is checked before anything is loaded.

    Vectors become float32, everything else ``dtype``, or stays as its bytes if ``keep_quantised``
    and its format is registered. With ``activations``, what is quantised becomes planes that are
    multiplied with these, and ``dtype`` only where there are no planes for it. Weights made of the
    same rows of a tensor share their memory. With a ``placement`` of experts, those of its layers
    go to their bays on the device and to their homes in host memory, and nowhere else; ``landing``
    are the bytes of the device for landing bays.
    Raises :class:`ModelFormatError` for a missing tensor or a wrong shape, and
    :class:`UnsupportedModelError` for a type that nothing can read, and for a tensor that the plan
    passes over in a layer it uses.
    """
    pieces = {spec.name: take(spec, inventory) for spec in plan}
    for piece in pieces.values():
        check_readable(piece, formats)
    check_unknown(plan, inventory)
    packer = None if activations is None else Packer(torch.device(device), activations)
    loader = Loader(inventory, formats, dtype, torch.device(device), keep_quantised, packer)
    records = None if placement is None else RecordLoader.of(loader, plan, placement, landing)
    loaded = loader.load(list(dict.fromkeys(pieces.values())), progress, records)
    packed, refused = Counter[str](), Counter[tuple[str, str]]()
    for piece in () if packer is None else loaded:
        kind, reason = piece.info.type_name, loader.refuses(piece)
        if not reason:
            packed[kind] += 1
        elif kind not in PLAIN and not piece.is_vector:
            refused[kind, reason] += 1
    experts = None if records is None else records.residency
    named = {name: loaded[piece] for name, piece in pieces.items()}
    return Weights(named, packed, refused, experts)


# -- loading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loader:
    """How the pieces of a file become weights."""

    inventory: Inventory
    formats: QuantFormats
    dtype: torch.dtype
    device: torch.device
    keep_quantised: bool
    packer: Packer | None

    def load(
        self,
        pieces: Sequence[Piece],
        progress: Progress | None = None,
        records: RecordLoader | None = None,
    ) -> dict[Piece, Loaded]:
        """Kept bytes are taken as they are; the rest is dequantised by rows in a few threads."""
        total = sum(self.stored(piece).nbytes for piece in pieces)
        done = 0
        loaded: dict[Piece, Loaded] = {}
        for piece, weight in self._results(pieces, records):
            loaded[piece] = weight
            done += self.stored(piece).nbytes
            if progress is not None:
                progress(done, total, piece.info.name)
        return loaded

    def _results(
        self, pieces: Sequence[Piece], records: RecordLoader | None
    ) -> Iterator[tuple[Piece, Loaded]]:
        """Yield every piece with its weight, in the order in which they finish."""
        with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as pool:
            if records is not None:
                yield from records.load(pool)
                placed = {piece for layer in records.pieces.values() for piece in layer.values()}
                pieces = [piece for piece in pieces if piece not in placed]
            tasks: dict[Future[None], _Job] = {}
            for piece in pieces:
                if self.stays_quantised(piece):
                    yield piece, self._kept(piece)
                elif self.refuses(piece) != "":
                    self._submit(piece, pool, tasks)
            for piece in pieces:
                if self.packer is not None and self.refuses(piece) == "":
                    stored = self.stored(piece)
                    yield piece, self.packer.pack(stored, piece.info.type_name, piece.shape)
            try:
                for task in as_completed(tasks):
                    task.result()
                    job = tasks[task]
                    job.pending -= 1
                    if job.pending == 0:
                        yield job.piece, job.out
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def refuses(self, piece: Piece) -> str:
        """Why a piece does not become planes; empty if it does."""
        if self.packer is None or piece.is_vector:
            return "not asked for"
        return self.packer.refuses(piece.info.type_name, piece.shape)

    def stays_quantised(self, piece: Piece) -> bool:
        return (
            self.keep_quantised
            and not piece.is_vector
            and piece.info.type_name not in PLAIN
            and self.formats.is_native(piece.info.ggml_type)
        )

    def stored(self, piece: Piece) -> npt.NDArray[np.uint8]:
        """The bytes of the piece, a view [rows, row bytes]."""
        info = piece.info
        data = self.inventory.bytes(info.name)
        if piece.rows is None:
            return data
        start, stop = (info.nbytes * row // info.shape[0] for row in piece.rows)
        return data.reshape(-1)[start:stop].reshape(prod(piece.shape[:-1]), -1)

    def _kept(self, piece: Piece) -> QuantTensor:
        format_ = self.formats.of_type(piece.info.ggml_type)
        return QuantTensor.from_bytes(self.stored(piece), format_, piece.shape).to(self.device)

    def _submit(
        self, piece: Piece, pool: ThreadPoolExecutor, tasks: dict[Future[None], _Job]
    ) -> None:
        dtype = torch.float32 if piece.is_vector else self.dtype
        # The pool's threads write to it, and inference mode does not reach into them.
        with torch.inference_mode(False):
            out = torch.empty(piece.shape, dtype=dtype, device=self.device)
            rows = out.view(-1, piece.shape[-1])
        format_ = self.formats.of_type(piece.info.ggml_type)
        stored = self.stored(piece)
        job = _Job(piece, out, pending=0)
        for start, stop in row_chunks(piece.shape):
            task = pool.submit(dequantize_rows, stored[start:stop], format_, rows[start:stop])
            tasks[task] = job
            job.pending += 1
