"""Activations as int8, with one scale for each group of 64 numbers."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
from torch.nn.functional import pad

GROUP_NUMBERS = 64
SUMS_GROUPS = 4
"""Groups whose sums stand side by side."""

MAX_INT8_ROWS = 16
"""Most int8 rows that the kernels of ``linear`` in Triton multiply."""

MAX_SUMS_ROWS = 32
"""Most that ``gemm_mma_int8`` multiplies; these have sums beside them."""


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """R rows of K numbers: words int32 [R, K/4] of four signed bytes each, and scale float32
    [K/64, S], where S is ``stride_of(R)`` and entries beyond R are undefined.

    Words w = 0..15 of a group are stored in the order 0, 4, 8, 12, 1, 5, 9, 13, 2 and so on, so
    that a lane loads the words that it multiplies in one load of 16 bytes.

    Two to ``MAX_SUMS_ROWS`` rows also have ``sums`` int32 [U, S, 4, 2], behind ``scale`` in memory:
    for each of four groups the sums of its first and of its second 32 numbers. A word has two
    bfloat16, the coarse parts of both sums, and the next word has their fine parts. Products of
    matrices with minima read them.
    """

    words: torch.Tensor
    scale: torch.Tensor
    sums: torch.Tensor | None = None

    @staticmethod
    def make(rows: int, width: int, device: torch.device) -> Int8Rows:
        """Uninitialised rows."""
        words = torch.empty(rows, width // 4, dtype=torch.int32, device=device)
        groups, step = width // GROUP_NUMBERS, stride_of(rows)
        if not 1 < rows <= MAX_SUMS_ROWS:
            return Int8Rows(words, torch.empty(groups, step, device=device))
        units = -(-groups // SUMS_GROUPS)
        shape = (units, step, SUMS_GROUPS, 2)
        numbers = torch.empty(groups * step + prod(shape), device=device)
        scale, sums = numbers.split([groups * step, prod(shape)])
        return Int8Rows(words, scale.view(groups, step), sums.view(torch.int32).view(shape))

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
    if rows.sums is not None:
        halves = q.unflatten(1, (-1, 2, GROUP_NUMBERS // 2)).sum(3) * scale[..., None]
        coarse = halves.view(torch.int32) & -0x10000
        rest = halves - coarse.view(torch.float32)
        parts = torch.stack((coarse.view(torch.float32), rest), 2).bfloat16().view(torch.int32)
        missing = -scale.shape[1] % SUMS_GROUPS
        sums = pad(parts.squeeze(3), (0, 0, 0, missing)).unflatten(1, (-1, SUMS_GROUPS))
        rows.sums.zero_()
        rows.sums[:, : x.shape[0]] = sums.transpose(0, 1)
    return rows


def dequantize(rows: Int8Rows) -> torch.Tensor:
    """float32 [R, K]."""
    words = rows.words.unflatten(1, (-1, 4, 4)).transpose(2, 3).flatten(1)
    numbers: torch.Tensor = words.contiguous().view(torch.int8).float()
    return numbers * rows.scales.repeat_interleave(GROUP_NUMBERS, 1)


def sums_of(rows: Int8Rows) -> torch.Tensor:
    """float32 [R, K/32]: the sums beside the rows. Raises ``ValueError`` if they have none."""
    if rows.sums is None:
        raise ValueError(f"{len(rows.words)} rows have no sums beside them")
    parts = rows.sums.view(torch.bfloat16).unflatten(3, (2, 2)).float().sum(3)
    sums: torch.Tensor = parts[:, : len(rows.words)].transpose(0, 1).flatten(1)
    return sums[:, : 2 * rows.scale.shape[0]]


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
