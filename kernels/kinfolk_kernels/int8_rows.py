"""Activations as int8 with one scale for 64 numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

GROUP = 64
FEW = 16
"""Rows of a step that matrices may read as int8."""


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """R rows of K numbers: words int32 [R, K/4] of four signed bytes each, and scale float32
    [R, K/64]."""

    words: torch.Tensor
    scale: torch.Tensor


def quantize(x: torch.Tensor) -> Int8Rows:
    """x [R, K], K a multiple of 64: q = round(x / d) with d = max|x| / 127 over each 64."""
    groups = x.float().unflatten(1, (-1, GROUP))
    scale = groups.abs().amax(2) / 127
    inverse = torch.where(scale > 0, 1 / scale, 0)
    q = (groups * inverse[..., None]).round().clamp(-127, 127).to(torch.int8).flatten(1)
    return Int8Rows(q.contiguous().view(torch.int32), scale)


def dequantize(rows: Int8Rows) -> torch.Tensor:
    """float32 [R, K]."""
    q = rows.words.view(torch.int8).float()
    return q * rows.scale.repeat_interleave(GROUP, 1)


def worth_int8(x: torch.Tensor) -> bool:
    """Whether a kernel that makes the numbers of ``x`` should make int8 rows beside them."""
    return x.dim() == 2 and x.shape[0] <= FEW and x.shape[1] % GROUP == 0


def with_int8(values: torch.Tensor, rows: Int8Rows | None) -> torch.Tensor:
    """``values`` [R, K], which remember that ``rows`` are the same numbers.

    Who makes rows of numbers can make int8 ones beside them for little; who multiplies them asks.
    A view does not remember, and nothing may write to ``values`` afterwards.
    """
    if rows is not None:
        values.int8_rows = rows  # type: ignore[attr-defined]
    return values


def made_int8(values: torch.Tensor) -> Int8Rows | None:
    """The int8 rows made beside ``values``, if there are any."""
    rows: Int8Rows | None = getattr(values, "int8_rows", None)
    return rows
