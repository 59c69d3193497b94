"""Tile parameters of the attention kernels, from shapes and the device.

The tiles of a sequence depend on its own rows and on the device, never on other sequences.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import torch
import triton

from kinfolk_kernels.sections import padded

SMALL_SHARED = 99 * 1024
"""Bytes of shared memory that a program may use on every supported device."""

HEIGHTS = (16, 32, 64, 128)
"""Heights of tiles, in pairs of a row and a query head that reads the same key head."""

NO_LIMIT = 1 << 30

LONGEST_PART = 256
"""Most dimensions of a program of the combine kernel, which reads up to 32 runs at a time."""

WARP_DIMENSIONS = 128
"""Dimensions of a warp of it, four in each lane. The sum of few runs is short: with more warps,
most of its time goes to what each warp does anyway, and to their waiting for each other."""


@dataclass(frozen=True, slots=True)
class Device:
    """The number of multiprocessors, and the bytes of shared memory that a program may use."""

    processors: int
    shared: int


@dataclass(frozen=True, slots=True)
class Height:
    """Tiles of ``m`` pairs, for sequences with more than ``above`` and up to ``up_to`` pairs."""

    m: int
    above: int
    up_to: int


@dataclass(frozen=True, slots=True)
class Tile:
    """``m`` pairs times ``n`` positions at a time; ``programs`` for each multiprocessor, if the
    work can be divided into as many. ``programs`` does not change the result."""

    m: int
    n: int
    warps: int
    stages: int
    programs: int = 4


@dataclass(frozen=True, slots=True)
class CombineTile:
    """``runs`` runs times ``size`` dimensions at a time."""

    runs: int
    size: int
    warps: int


def heights(
    pairs: Iterable[int], size: int, value_size: int, number_bytes: int
) -> tuple[Height, ...]:
    """The heights of tiles for sequences with these numbers of pairs.

    They are limited by the registers for accumulators. Products in float32, which do not run on
    tensor cores, need more registers and so lower tiles.
    """
    most = 16 if number_bytes == 4 else 64 * 256 // max(size, value_size)
    offered = [m for m in HEIGHTS if m <= most]
    tops = [*offered[:-1], NO_LIMIT]
    needed = set(pairs)
    return tuple(
        Height(m, above, up_to)
        for m, above, up_to in zip(offered, [0, *tops[:-1]], tops, strict=True)
        if any(above < n <= up_to for n in needed)
    )


def decode_tile(m: int, size: int, value_size: int, number_bytes: int, coded: bool) -> Tile:
    """The tile of the decode kernel for ``m`` pairs; ``number_bytes`` is the size of an operand of
    products. ``coded``: keys or values are decoded in registers."""
    wide = max(size, value_size)
    if number_bytes == 4:
        return Tile(m, 16, 4, 2 if wide <= 256 else 1)
    if wide <= 128:
        n = 32 if coded and m > 32 else 64
        return Tile(m, n, 8 if m == 128 else 4, 3 if m <= 32 else 2)
    if wide == 256:
        return Tile(m, 32, 4 if m == 16 else 8, 3 if m <= 32 else 2)
    return Tile(m, 32, 8, 2) if m == 16 else Tile(m, 16, 8, 3)


def prefill_tile(size: int, value_size: int, number_bytes: int, device: Device) -> Tile:
    """The tile of the prefill kernel; ``number_bytes`` is the size of an operand of products."""
    wide = max(size, value_size)
    if number_bytes == 4:
        return Tile(16, 16, 4, 1)
    large = device.shared > 2 * SMALL_SHARED
    if wide <= 128:
        return Tile(128, 64 if large else 32, 8, 3)
    if wide == 256:
        return Tile(128, 64, 8, 2) if large else Tile(64, 32, 8, 2)
    return Tile(64, 16, 8, 2) if large else Tile(32, 32, 8, 1)


def combine_tile(dim: int, rotated: bool) -> CombineTile:
    """The tile of the combine kernel. A rotation needs all dimensions of a head in one program;
    otherwise they are divided into few equal parts, as starting a program costs more than its
    sums."""
    size = padded(dim) if rotated else 64
    while not rotated and size < LONGEST_PART and dim % (2 * size) == 0:
        size *= 2
    return CombineTile(min(32, 32 * LONGEST_PART // size), size, max(1, size // WARP_DIMENSIONS))


def device_of(x: torch.Tensor) -> Device:
    """The device of a tensor; for a tensor that is not on a GPU, the smallest supported device."""
    return _device(x.device.index) if x.is_cuda else Device(1, SMALL_SHARED)


@cache
def _device(index: int) -> Device:
    properties = triton.runtime.driver.active.utils.get_device_properties(index)
    return Device(properties["multiprocessor_count"], properties["max_shared_mem"])
