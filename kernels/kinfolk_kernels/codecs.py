"""Codecs of keys and values in groups of 32 numbers: q8_0 and q4_0, and the rotation before them.

A section of a block has two planes: codes uint8 [heads, 64, dim] (q8_0, two's complement) or
[heads, 64, dim / 2] (q4_0: byte j of 16 holds elements j and j + 16 of its 32), then scales float16
[heads, 64, dim / 32]. Codes and scales equal those of the GGUF formats of the same name, bit for
bit; here they are stored in separate planes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

CODED_BLOCK_NUMBERS = 32
"""Numbers that share a scale."""

FORMATS = {"q8_0": 1, "q4_0": 2}
"""Numbers in a byte of codes, by format."""


@dataclass(frozen=True, slots=True)
class Coded:
    """A quantised section of a pool: codes uint8 [blocks, heads, 64, bytes] and scales float16
    [blocks, heads, 64, dim / 32]. ``rotated``: vectors were rotated before quantisation."""

    format: str
    codes: torch.Tensor
    scales: torch.Tensor
    rotated: bool = False

    @property
    def dim(self) -> int:
        return int(self.scales.shape[-1]) * CODED_BLOCK_NUMBERS


Stored = torch.Tensor | Coded
"""A section as plain numbers [blocks, heads, 64, dim], or quantised."""


def dim_of(stored: Stored) -> int:
    return stored.dim if isinstance(stored, Coded) else int(stored.shape[-1])


def heads_of(stored: Stored) -> int:
    return int((stored.codes if isinstance(stored, Coded) else stored).shape[1])


def is_rotated(stored: Stored) -> bool:
    return isinstance(stored, Coded) and stored.rotated


def encode(format: str, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [..., dim] -> codes uint8 [..., bytes] and scales float16 [..., dim / 32].

    The scale is rounded to float16 for storage; codes are computed with the unrounded scale.
    """
    blocks = x.float().unflatten(-1, (-1, CODED_BLOCK_NUMBERS))
    scale, codes = _ENCODERS[format](blocks)
    return codes.flatten(-2), scale.squeeze(-1).half()


def decode(format: str, codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Codes [..., bytes] and scales [..., dim / 32] -> float32 [..., dim]."""
    blocks = codes.unflatten(-1, (-1, CODED_BLOCK_NUMBERS // FORMATS[format]))
    if format == "q8_0":
        numbers = blocks.view(torch.int8).float()
    else:
        numbers = torch.cat([blocks & 15, blocks >> 4], -1).float() - 8
    scaled: torch.Tensor = numbers * scales.float()[..., None]
    return scaled.flatten(-2)


def _all(plane: torch.Tensor) -> torch.Tensor:
    return plane


def numbers(stored: Stored, pick: Callable[[torch.Tensor], torch.Tensor] = _all) -> torch.Tensor:
    """The numbers of a section, [blocks, heads, 64, dim]; a rotation is not undone.

    ``pick`` selects vectors of a plane, so that only these are decoded.
    """
    if isinstance(stored, Coded):
        return decode(stored.format, pick(stored.codes), pick(stored.scales))
    return pick(stored)


def rotation_size(dim: int) -> int:
    """The largest power of two that divides ``dim``."""
    return dim & -dim


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Walsh-Hadamard transform of each ``rotation_size`` numbers of the last dimension, float32.

    It is orthonormal and its own inverse, so rotated queries and keys have the same scores. It
    spreads outliers over many numbers, which makes a shared scale of 32 numbers more accurate.
    """
    size = rotation_size(x.shape[-1])
    y: torch.Tensor = x.float().unflatten(-1, (-1, size))
    half = size // 2
    while half:
        a, b = y.unflatten(-1, (-1, 2, half)).unbind(-2)
        y = torch.stack([a + b, a - b], -2).flatten(-3)
        half //= 2
    return (y / math.sqrt(size)).flatten(-2)


def _encode_q8_0(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    scaled = blocks * _inverse(scale)
    size = scaled.abs()
    whole = size.floor()
    # Halves are rounded away from zero.
    rounded = scaled.sign() * (whole + (2 * (size - whole)).floor())
    return scale, rounded.to(torch.int8).view(torch.uint8)


def _encode_q4_0(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # The number of largest magnitude (the first of equals) gets code 0, which stands for -8.
    largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    scale = largest / -8
    codes = (blocks * _inverse(scale) + 8.5).trunc().clamp(0, 15).to(torch.uint8)
    low, high = codes.unflatten(-1, (2, CODED_BLOCK_NUMBERS // 2)).unbind(-2)
    return scale, low | high << 4


def _inverse(scale: torch.Tensor) -> torch.Tensor:
    return torch.where(scale == 0, 0, 1 / scale)


_ENCODERS = {"q8_0": _encode_q8_0, "q4_0": _encode_q4_0}
