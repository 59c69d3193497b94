"""Executes a weight plan: from the tensors of a file to the weights a model asks for by name."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from kinfolk.errors import ModelFormatError, UnsupportedModelError
from kinfolk.gguf.file_types import layer_of
from kinfolk.gguf.inventory import Inventory, TensorInfo
from kinfolk.plans import WeightPlan, WeightSpec
from kinfolk.quant.formats import PLAIN, QuantFormats
from kinfolk.quant.tensor import QuantTensor, dequantize_rows, row_chunks

logger = logging.getLogger(__name__)

Weight = torch.Tensor | QuantTensor
Progress = Callable[[int, int, str], None]
"""Called with the bytes done, the bytes in total and the tensor that was finished."""

_MAX_THREADS = 8
_LISTED = 8


class Weights(Mapping[str, Weight]):
    """The weights of one model by the names of its plan.

    ``[name]`` gives a tensor, or a :class:`QuantTensor` if quantised bytes were kept.
    """

    def __init__(self, weights: Mapping[str, Weight]):
        self._weights = dict(weights)

    def __getitem__(self, name: str) -> Weight:
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)

    def tensor(self, name: str) -> torch.Tensor:
        """A weight that must not be quantised, such as a vector."""
        weight = self._weights[name]
        if isinstance(weight, QuantTensor):
            raise TypeError(f"weight {name!r} is kept as {weight.format.name}, not as numbers")
        return weight

    def optional(self, name: str) -> torch.Tensor | None:
        """The same for one that a file may lack."""
        return self.tensor(name) if name in self._weights else None

    @property
    def nbytes(self) -> int:
        """Bytes on the device; a tensor with several names counts once."""
        data = [w.data if isinstance(w, QuantTensor) else w for w in self._weights.values()]
        return sum({tensor.data_ptr(): tensor.nbytes for tensor in data}.values())


@dataclass(frozen=True, slots=True)
class _Piece:
    """A range of leading rows of a file's tensor, and the form it is wanted in."""

    info: TensorInfo
    rows: tuple[int, int] | None
    shape: tuple[int, ...]
    is_vector: bool


@dataclass(slots=True)
class _Job:
    """A piece on its way into ``out``; ``pending`` tasks still write to it."""

    piece: _Piece
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
    progress: Progress | None = None,
) -> Weights:
    """Load every weight of ``plan``; everything is checked before anything is loaded.

    Vectors become float32, everything else ``dtype``, or stays as its bytes if ``keep_quantised``
    and its format is registered. Weights made of the same rows of a tensor share their memory.
    Raises :class:`ModelFormatError` for a missing tensor or a wrong shape, and
    :class:`UnsupportedModelError` for a type that nothing can read, and for a tensor that the plan
    passes over in a layer it uses.
    """
    pieces = {spec.name: _piece(spec, inventory) for spec in plan}
    for piece in pieces.values():
        _check_readable(piece, formats)
    _check_unknown(plan, inventory)
    loader = _Loader(inventory, formats, dtype, torch.device(device), keep_quantised)
    loaded = loader.load(list(dict.fromkeys(pieces.values())), progress)
    return Weights({name: loaded[piece] for name, piece in pieces.items()})


# -- checks ---------------------------------------------------------------------------------------


def _piece(spec: WeightSpec, inventory: Inventory) -> _Piece:
    """What ``spec`` takes from the file, checked against the shape stated there."""
    info = inventory.get(spec.tensor)
    if info is None:
        raise ModelFormatError(
            f"tensor {spec.tensor!r} is missing; weight {spec.name!r} of shape {spec.shape} "
            "needs it. The file is incomplete or was made for another runtime",
            path=inventory.path,
            key=spec.tensor,
        )
    start, stop = spec.rows or (0, info.shape[0])
    found = info.shape if spec.rows is None else (stop - start, *info.shape[1:])
    if not 0 <= start < stop <= info.shape[0]:
        raise ModelFormatError(
            f"tensor {info.name!r} has shape {info.shape}, but weight {spec.name!r} is its rows "
            f"{start} to {stop}",
            path=info.path,
            key=info.name,
        )
    if _significant(found) != _significant(spec.shape):
        part = "" if spec.rows is None else f" in rows {start} to {stop}"
        raise ModelFormatError(
            f"tensor {info.name!r} has shape {found}{part}, weight {spec.name!r} expects "
            f"{spec.shape}",
            path=info.path,
            key=info.name,
        )
    return _Piece(info, spec.rows, spec.shape, spec.role == "vector")


def _significant(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without leading ones, which the file format does not distinguish."""
    leading = next((i for i, size in enumerate(shape) if size != 1), len(shape))
    return shape[leading:]


def _check_readable(piece: _Piece, formats: QuantFormats) -> None:
    info = piece.info
    try:
        block = formats.of_type(info.ggml_type).block
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{info.path}: tensor {info.name!r}: {error}") from None
    if len(info.shape) == 1 and any(row % block for row in piece.rows or ()):
        raise ModelFormatError(
            f"vector {info.name!r} is cut at {piece.rows}, inside a block of {block} numbers",
            path=info.path,
            key=info.name,
        )


def _check_unknown(plan: WeightPlan, inventory: Inventory) -> None:
    """A layer with something left out, a bias say, is another layer; the rest is only mentioned."""
    used = {spec.tensor for spec in plan}
    layers = {layer_of(name) for name in used} - {-1}
    unknown = [name for name in inventory if name not in used and name not in plan.ignored]
    where = inventory.path or "the model"
    if missed := [name for name in unknown if layer_of(name) in layers or _stem(name) in used]:
        raise UnsupportedModelError(
            f"{where}: nothing in this model uses {_listed(missed)}, which belong to layers that "
            "it runs: its answers would be wrong. A newer version of the family's plugin may know "
            "them (its weight plan uses a tensor, or ignores it for a reason)"
        )
    if unknown:
        count = len(unknown)
        logger.warning(
            "%s: %d tensors are not used by this model: %s", where, count, _listed(unknown)
        )


def _stem(name: str) -> str:
    """The matrix beside which a bias or a scale stands."""
    return f"{name.rpartition('.')[0]}.weight"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


# -- loading --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Loader:
    inventory: Inventory
    formats: QuantFormats
    dtype: torch.dtype
    device: torch.device
    keep_quantised: bool

    def load(self, pieces: Sequence[_Piece], progress: Progress | None) -> dict[_Piece, Weight]:
        """Kept bytes are taken as they are; the rest is dequantised by rows in a few threads."""
        total = sum(self._stored(piece).nbytes for piece in pieces)
        done = 0
        loaded: dict[_Piece, Weight] = {}
        for piece, weight in self._results(pieces):
            loaded[piece] = weight
            done += self._stored(piece).nbytes
            if progress is not None:
                progress(done, total, piece.info.name)
        return loaded

    def _results(self, pieces: Sequence[_Piece]) -> Iterator[tuple[_Piece, Weight]]:
        """Every piece as soon as it is there."""
        with ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1)) as pool:
            tasks: dict[Future[None], _Job] = {}
            for piece in pieces:
                if self._stays_quantised(piece):
                    yield piece, self._kept(piece)
                else:
                    self._submit(piece, pool, tasks)
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

    def _stays_quantised(self, piece: _Piece) -> bool:
        return (
            self.keep_quantised
            and not piece.is_vector
            and piece.info.type_name not in PLAIN
            and self.formats.is_native(piece.info.ggml_type)
        )

    def _stored(self, piece: _Piece) -> npt.NDArray[np.uint8]:
        """The bytes of the piece, a view [rows, row bytes]."""
        info = piece.info
        data = self.inventory.bytes(info.name)
        if piece.rows is None:
            return data
        start, stop = (info.nbytes * row // info.shape[0] for row in piece.rows)
        return data.reshape(-1)[start:stop].reshape(prod(piece.shape[:-1]), -1)

    def _kept(self, piece: _Piece) -> QuantTensor:
        format_ = self.formats.of_type(piece.info.ggml_type)
        return QuantTensor.from_bytes(self._stored(piece), format_, piece.shape).to(self.device)

    def _submit(
        self, piece: _Piece, pool: ThreadPoolExecutor, tasks: dict[Future[None], _Job]
    ) -> None:
        dtype = torch.float32 if piece.is_vector else self.dtype
        # The pool's threads write to it, and inference mode does not reach into them.
        with torch.inference_mode(False):
            out = torch.empty(piece.shape, dtype=dtype, device=self.device)
            rows = out.view(-1, piece.shape[-1])
        format_ = self.formats.of_type(piece.info.ggml_type)
        stored = self._stored(piece)
        job = _Job(piece, out, pending=0)
        for start, stop in row_chunks(piece.shape):
            task = pool.submit(dequantize_rows, stored[start:stop], format_, rows[start:stop])
            tasks[task] = job
            job.pending += 1
