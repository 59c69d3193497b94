"""Loads experts into records: each to its home in host memory, and to its bay if it has one.

A group of records is put together on the device and copied from there. Beside bays and homes there
is never more than that group, and the pieces of a file it is made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from kinfolk.experts.cache import ExpertCache, LayerExperts, PlacedStack
from kinfolk.experts.records import RecordLayout, StoredMatrix, blocks, numbers, planes
from kinfolk.gguf.file_types import layer_of
from kinfolk.gguf.inventory import Inventory
from kinfolk.plans import Placement, WeightPlan
from kinfolk.quant.formats import PLAIN, QuantFormats
from kinfolk.quant.tensor import dequantize_rows, from_map, row_chunks
from kinfolk.weights.packer import PIECE, Packer
from kinfolk.weights.pieces import Piece, take

ExpertPieces = Mapping[int, Mapping[str, Piece]]
"""By layer, the stacks of its experts by name."""


def expert_pieces(plan: WeightPlan, inventory: Inventory, layers: Iterable[int]) -> ExpertPieces:
    """The stacks of role ``experts`` in these layers."""
    found: dict[int, dict[str, Piece]] = {}
    for spec in plan:
        layer = layer_of(spec.tensor)
        if spec.role == "experts" and layer in layers:
            found.setdefault(layer, {})[spec.name] = take(spec, inventory)
    return found


def record_layout(
    pieces: Mapping[str, Piece],
    formats: QuantFormats,
    dtype: torch.dtype,
    *,
    packer: Packer | None,
    keep_quantised: bool,
) -> RecordLayout:
    """The layout of the records of a layer; weights are kept as the loader keeps others."""

    def stored(piece: Piece) -> StoredMatrix:
        kind, shape = piece.info.type_name, piece.shape
        if packer is not None and not packer.refuses(kind, shape):
            return planes(kind, shape[1:], packer.activations)
        if keep_quantised and kind not in PLAIN and formats.is_native(piece.info.ggml_type):
            return blocks(formats.of_type(piece.info.ggml_type), shape[1:])
        return numbers(dtype, shape[1:])

    return RecordLayout.of({name: stored(piece) for name, piece in pieces.items()})


class PieceReader(Protocol):
    """Reads pieces of a file, and says in which form they are kept."""

    @property
    def inventory(self) -> Inventory: ...
    @property
    def formats(self) -> QuantFormats: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def keep_quantised(self) -> bool: ...
    @property
    def packer(self) -> Packer | None: ...

    def stored(self, piece: Piece) -> npt.NDArray[np.uint8]:
        """The bytes of the piece, [rows, row bytes]."""
        ...

    def refuses(self, piece: Piece) -> str:
        """Why a piece does not become planes; empty if it does."""
        ...

    def stays_quantised(self, piece: Piece) -> bool:
        """Whether the bytes are kept as they are."""
        ...


@dataclass(frozen=True, slots=True)
class RecordLoader:
    """Fills the records of a model with the pieces of its file."""

    loader: PieceReader
    pieces: ExpertPieces
    residency: ExpertCache

    @classmethod
    def of(
        cls, loader: PieceReader, plan: WeightPlan, placement: Placement, landing: int = 0
    ) -> RecordLoader:
        """Records for all layers that ``placement`` knows, and bytes of landing bays."""
        pieces = expert_pieces(plan, loader.inventory, range(len(placement.bays)))
        layouts = {}
        for layer, mine in pieces.items():
            layout = record_layout(
                mine,
                loader.formats,
                loader.dtype,
                packer=loader.packer,
                keep_quantised=loader.keep_quantised,
            )
            layouts[layer] = layout, next(iter(mine.values())).shape[0]
        return cls(loader, pieces, ExpertCache(layouts, placement, loader.device, landing))

    def load(self, pool: ThreadPoolExecutor) -> Iterator[tuple[Piece, PlacedStack]]:
        """Fill layer after layer, and yield its stacks."""
        for layer, pieces in self.pieces.items():
            placed = self.residency.layers[layer]
            self._fill(placed, pieces, pool)
            for name, piece in pieces.items():
                yield piece, placed.stack(name)

    def _fill(
        self, placed: LayerExperts, pieces: Mapping[str, Piece], pool: ThreadPoolExecutor
    ) -> None:
        layout, count = placed.layout, placed.count
        group = max(1, min(count, PIECE // layout.nbytes))
        bay_of = {expert: bay for bay, expert in enumerate(placed.placed)}
        with torch.inference_mode(False):
            # Zeros between planes: equal experts have equal records.
            device = self.loader.device
            staged = torch.zeros(group, layout.nbytes, dtype=torch.uint8, device=device)
        for first in range(0, count, group):
            records = staged[: min(group, count - first)]
            tasks = [
                task
                for name, piece in pieces.items()
                for task in self._put(piece, first, layout.planes(name, records), pool)
            ]
            for task in tasks:
                task.result()
            if placed.far is not None:
                placed.far[first : first + len(records)].copy_(records, non_blocking=True)
            for place, record in enumerate(records):
                if (bay := bay_of.get(first + place)) is not None:
                    placed.near[bay].copy_(record)

    def _put(
        self,
        piece: Piece,
        first: int,
        out: tuple[torch.Tensor, ...],
        pool: ThreadPoolExecutor,
    ) -> list[Future[None]]:
        """Write a stack's matrices from ``first`` on into planes [n, ...]. What is dequantised is
        left to tasks."""
        loader, count = self.loader, out[0].shape[0]
        rows = prod(piece.shape[1:-1])
        stored = loader.stored(piece).reshape(piece.shape[0] * rows, -1)
        mine = stored[first * rows : (first + count) * rows]
        if loader.refuses(piece) == "":
            assert loader.packer is not None
            shape = (count, *piece.shape[1:])
            packed = loader.packer.pack(mine, piece.info.type_name, shape)
            for plane, source in zip(out, packed.tensors, strict=True):
                plane.copy_(source)
            return []
        if loader.stays_quantised(piece):
            out[0].copy_(from_map(mine).view(out[0].shape))
            return []
        return self._dequantised(piece, mine.reshape(count, rows, -1), out[0], pool)

    def _dequantised(
        self,
        piece: Piece,
        stored: npt.NDArray[np.uint8],
        out: torch.Tensor,
        pool: ThreadPoolExecutor,
    ) -> list[Future[None]]:
        format_ = self.loader.formats.of_type(piece.info.ggml_type)
        return [
            pool.submit(dequantize_rows, blocks_[start:stop], format_, matrix[start:stop])
            for blocks_, matrix in zip(stored, out, strict=True)
            for start, stop in row_chunks(tuple(matrix.shape))
        ]
