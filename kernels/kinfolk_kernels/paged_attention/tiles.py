"""Tile parameters of the attention kernels, from shapes and the device.

What a sequence gets depends on its own rows and on the device: never on its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import torch
import triton

from kinfolk_kernels.sections import padded

SMALL_SHARED = 99 * 1024
"""Bytes of shared memory that a program may take on every supported device."""

HEIGHTS = (16, 32, 64, 128)
"""Heights of a tile: pairs of a row and a query head that reads the same key head."""

NO_LIMIT = 1 << 30

LONGEST_PART = 256
"""Dimensions that a program puts together of 32 runs at a time."""


@dataclass(frozen=True, slots=True)
class Device:
    """Multiprocessors, and bytes of shared memory that a program may take."""

    processors: int
    shared: int


@dataclass(frozen=True, slots=True)
class Height:
    """Tiles of ``m`` pairs serve sequences with more than ``above`` and up to ``up_to`` of them."""

    m: int
    above: int
    up_to: int


@dataclass(frozen=True, slots=True)
class Tile:
    """``m`` pairs against ``n`` positions at a time; ``programs`` for each multiprocessor, where
    the work can be cut into as many. The last changes no bit of the result."""

    m: int
    n: int
    warps: int
    stages: int
    programs: int = 4


@dataclass(frozen=True, slots=True)
class CombineTile:
    """``runs`` times ``size`` dimensions at a time."""

    runs: int
    size: int
    warps: int


def heights(
    pairs: Iterable[int], size: int, value_size: int, number_bytes: int
) -> tuple[Height, ...]:
    """The heights that sequences with these numbers of pairs need.

    Accumulators bound them. Products in float32 do not run on matrix units, and the registers of a
    taller tile would not suffice.
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
    """For tiles of ``m`` pairs; ``number_bytes`` of a number in the products. ``coded``: keys or
    values have to be decoded in registers."""
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
    """``number_bytes`` of a number in the products."""
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
    """A rotation needs all dimensions of a head in one program; else they are shared out in equal
    parts, as each program costs more than what it adds up."""
    size = padded(dim) if rotated else 64
    while not rotated and size < LONGEST_PART and dim % (2 * size) == 0:
        size *= 2
    return CombineTile(min(32, 32 * LONGEST_PART // size), size, 4)


def device_of(x: torch.Tensor) -> Device:
    """The device of a tensor; of one that is on none, the least."""
    return _device(x.device.index) if x.is_cuda else Device(1, SMALL_SHARED)


@cache
def _device(index: int) -> Device:
    properties = triton.runtime.driver.active.utils.get_device_properties(index)
    return Device(properties["multiprocessor_count"], properties["max_shared_mem"])
