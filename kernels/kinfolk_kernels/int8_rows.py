"""Activations as int8, with one scale for each group of 64 numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

GROUP_NUMBERS = 64
MAX_INT8_ROWS = 16
"""Most rows of a step for which products may read activations as int8."""


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """R rows of K numbers: words int32 [R, K/4] of four signed bytes each, and scale float32
    [K/64, S], where S is ``stride_of(R)`` and entries beyond R are undefined.

    Words w = 0..15 of a group are stored in the order 0, 4, 8, 12, 1, 5, 9, 13, 2 and so on, so
    that a lane loads the words that it multiplies in one load of 16 bytes.
    """

    words: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def make(rows: int, width: int, device: torch.device) -> Int8Rows:
        """Uninitialised rows."""
        words = torch.empty(rows, width // 4, dtype=torch.int32, device=device)
        return Int8Rows(words, torch.empty(width // GROUP_NUMBERS, stride_of(rows), device=device))

    @property
    def scales(self) -> torch.Tensor:
        """[R, K/64]."""
        scales: torch.Tensor = self.scale[:, : self.words.shape[0]].T
        return scales


def stride_of(rows: int) -> int:
    """The stride of ``scale`` between groups: 1 for one row, else a multiple of eight, as scales
    of eight rows are read at once."""
    return 1 if rows == 1 else -(-rows // 8) * 8


def quantize(x: torch.Tensor) -> Int8Rows:
    """x [R, K], K a multiple of 64: q = round(x / d) with d = max|x| / 127 over each 64."""
    groups = x.float().unflatten(1, (-1, GROUP_NUMBERS))
    scale = groups.abs().amax(2) / 127
    inverse = torch.where(scale > 0, 1 / scale, 0)
    q = (groups * inverse[..., None]).round().clamp(-127, 127).to(torch.int8).flatten(1)
    rows = Int8Rows.make(x.shape[0], x.shape[1], x.device)
    words = q.contiguous().view(torch.int32).unflatten(1, (-1, 4, 4))
    rows.words.copy_(words.transpose(2, 3).flatten(1))
    rows.scale.zero_()
    rows.scales.copy_(scale)
    return rows


def dequantize(rows: Int8Rows) -> torch.Tensor:
    """float32 [R, K]."""
    words = rows.words.unflatten(1, (-1, 4, 4)).transpose(2, 3).flatten(1)
    numbers: torch.Tensor = words.contiguous().view(torch.int8).float()
    return numbers * rows.scales.repeat_interleave(GROUP_NUMBERS, 1)


def worth_int8(x: torch.Tensor) -> bool:
    """Whether a kernel that computes ``x`` should also store it as int8 rows."""
    return x.dim() == 2 and x.shape[0] <= MAX_INT8_ROWS and x.shape[1] % GROUP_NUMBERS == 0


def with_int8(values: torch.Tensor, rows: Int8Rows | None) -> torch.Tensor:
    """``values`` [R, K] with ``rows``, the same numbers as int8, attached to the tensor.

    A kernel that computes rows can also store int8 at little cost; a product that wants int8 looks
    for them with ``made_int8``. Views lose the attached rows, and ``values`` must not be written
    afterwards.
    """
    if rows is not None:
        values.int8_rows = rows  # type: ignore[attr-defined]
    return values


def made_int8(values: torch.Tensor) -> Int8Rows | None:
    """The int8 rows attached to ``values``, or ``None``."""
    rows: Int8Rows | None = getattr(values, "int8_rows", None)
    return rows
