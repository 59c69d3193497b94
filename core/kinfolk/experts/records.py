"""Records: the layout of all matrices of one expert in one range of bytes.

All experts of a layer have the same layout, so N records are a tensor uint8 [N, record], and each
matrix of all of them is a stack with the stride of a record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from kinfolk.descriptors import QuantFormat
from kinfolk.quant.tensor import QuantTensor

if TYPE_CHECKING:
    from kinfolk_kernels.planes import Activations

RECORD_ALIGNMENT = 256
"""Planes and records begin at multiples of so many bytes."""


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """How one matrix of an expert is stored: the dtype and shape of each plane, and ``stack``,
    which makes the stack of N matrices from their planes [N, *shape]."""

    planes: tuple[tuple[torch.dtype, tuple[int, ...]], ...]
    stack: Callable[[Sequence[torch.Tensor]], Any]


def numbers(dtype: torch.dtype, shape: tuple[int, ...]) -> StoredMatrix:
    """Plain numbers; ``shape`` is that of the matrix of one expert."""
    return StoredMatrix(((dtype, shape),), lambda planes: planes[0])


def blocks(format: QuantFormat, shape: tuple[int, ...]) -> StoredMatrix:
    """The blocks of a file."""
    rows, columns = shape

    def stack(planes: Sequence[torch.Tensor]) -> QuantTensor:
        return QuantTensor(planes[0], format, (planes[0].shape[0], *shape))

    return StoredMatrix(((torch.uint8, (rows, columns // format.block * format.bytes)),), stack)


def planes(format: str, shape: tuple[int, ...], activations: Activations) -> StoredMatrix:
    """The planes of a packed matrix."""
    from kinfolk_kernels.packing import empty
    from kinfolk_kernels.planes import PlanesStack

    rows, columns = shape
    one = empty(format, rows, columns, "meta", activations)
    kinds = tuple((plane.dtype, tuple(plane.shape)) for plane in one.tensors)

    def stack(found: Sequence[torch.Tensor]) -> PlanesStack:
        q, rest = found[0], iter(found[1:])
        high, scales = (None if plane is None else next(rest) for plane in (one.high, one.scales))
        supers = next(rest)
        return PlanesStack(format, rows, columns, q, high, scales, supers, activations)

    return StoredMatrix(kinds, stack)


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """Where the planes of each matrix of an expert begin, by the name of its stack."""

    matrices: Mapping[str, StoredMatrix]
    offsets: Mapping[str, tuple[int, ...]]
    nbytes: int
    """Bytes of a record."""

    @classmethod
    def of(cls, matrices: Mapping[str, StoredMatrix]) -> RecordLayout:
        offsets: dict[str, tuple[int, ...]] = {}
        end = 0
        for name, matrix in matrices.items():
            starts = []
            for dtype, shape in matrix.planes:
                starts.append(end)
                end += _aligned(prod(shape) * dtype.itemsize)
            offsets[name] = tuple(starts)
        return cls(dict(matrices), offsets, end)

    def planes(self, name: str, records: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The planes [N, *shape] of a stack in ``records`` uint8 [N, nbytes], as views."""
        return tuple(
            records[:, start : start + prod(shape) * dtype.itemsize]
            .view(dtype)
            .view(records.shape[0], *shape)
            for start, (dtype, shape) in zip(
                self.offsets[name], self.matrices[name].planes, strict=True
            )
        )

    def stack(self, name: str, records: torch.Tensor) -> Any:
        """A stack in ``records``, as a view: plain numbers, a :class:`QuantTensor` or planes."""
        return self.matrices[name].stack(self.planes(name, records))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // RECORD_ALIGNMENT) * RECORD_ALIGNMENT
