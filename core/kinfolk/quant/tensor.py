"""Quantised weights, kept as the blocks of the file."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from kinfolk.descriptors import QuantFormat
from kinfolk.quant.codec import dequantize

# Numbers dequantised at a time: bounds the float32 copy that a conversion needs.
_PIECE_NUMBERS = 1 << 20


@dataclass(frozen=True, slots=True)
class QuantTensor:
    """``data`` uint8 [*shape[:-1], bytes of a row] in ``format``; ``shape`` counts numbers.

    The bytes may be a view into a mapped file: they are never written to.
    """

    data: torch.Tensor
    format: QuantFormat
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        expected = (*self.shape[:-1], self.shape[-1] // self.format.block * self.format.bytes)
        if tuple(self.data.shape) != expected or self.data.dtype != torch.uint8:
            raise ValueError(
                f"a {self.format.name} tensor of shape {self.shape} has uint8 data of shape "
                f"{expected}, not {self.data.dtype} {tuple(self.data.shape)}"
            )

    @classmethod
    def from_bytes(
        cls, data: npt.NDArray[np.uint8], format: QuantFormat, shape: tuple[int, ...]
    ) -> QuantTensor:
        """Wrap stored bytes without copying them."""
        row = shape[-1] // format.block * format.bytes
        return cls(from_map(data).reshape(*shape[:-1], row), format, shape)

    @property
    def device(self) -> torch.device:
        return self.data.device

    @property
    def nbytes(self) -> int:
        return self.data.numel()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int | slice) -> QuantTensor:
        """Leading rows, as a view: an integer drops the dimension, a slice keeps it."""
        data = self.data[index]
        return QuantTensor(data, self.format, (*data.shape[:-1], self.shape[-1]))

    def select(self, rows: torch.Tensor) -> QuantTensor:
        """A copy of the leading rows ``rows`` int64 [n]."""
        data = self.data.index_select(0, rows)
        return QuantTensor(data, self.format, (*data.shape[:-1], self.shape[-1]))

    def to(self, device: torch.device | str) -> QuantTensor:
        return QuantTensor(self.data.to(device), self.format, self.shape)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The numbers, [*shape] on the same device; works chunk by chunk on the host."""
        out = torch.empty(self.shape, dtype=dtype, device=self.device)
        rows, source = out.reshape(-1, self.shape[-1]), self.data.reshape(-1, self.data.shape[-1])
        for start, stop in row_chunks(self.shape):
            dequantize_rows(source[start:stop].cpu().numpy(), self.format, rows[start:stop])
        return out


def from_map(data: npt.NDArray[np.uint8]) -> torch.Tensor:
    """Wrap read-only bytes as a tensor, without a copy."""
    with warnings.catch_warnings():
        # torch warns that the map is read-only, which is as it should be.
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(data)


def row_chunks(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Half-open ranges of flattened rows that cover ``shape``, of about ``_PIECE_NUMBERS`` each."""
    rows, step = prod(shape[:-1]), max(1, _PIECE_NUMBERS // shape[-1])
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


def dequantize_rows(data: npt.NDArray[np.uint8], format: QuantFormat, out: torch.Tensor) -> None:
    """Dequantise uint8 [rows, row bytes] into ``out`` [rows, n] of any type and device."""
    out.copy_(torch.from_numpy(dequantize(data, format)))
