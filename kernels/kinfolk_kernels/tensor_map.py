"""Tensor maps: what a kernel in CUDA C++ needs to copy a box of a tensor in one instruction.

The unit that copies (TMA, of sm_90) reads sizes, strides and the box from 128 bytes that the driver
encodes, see ``cuTensorMapEncodeTiled``.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache

import torch

from kinfolk_kernels.cuda_source import driver, driver_ok

MAP_BYTES, MAP_ALIGNMENT = 128, 64
BOX_DIMENSIONS = 3

_WORDS_OF_32_BITS = 2
_SWIZZLE_128 = 3
_NOT_INTERLEAVED = 0
_ZEROS_OUTSIDE = 0
_NOT_PROMOTED = 0
"""The second-level cache reads no more than is asked for. With 256 bytes at a time, steps of 16
sequences are 1 to 2 % slower (``benchmarks/NOTES.md``)."""


class Description(ctypes.Structure):
    """A map as it is before a driver encodes it: what there is where no driver is."""

    _fields_ = (
        ("address", ctypes.c_uint64),
        ("sizes", ctypes.c_uint64 * BOX_DIMENSIONS),
        ("strides", ctypes.c_uint64 * BOX_DIMENSIONS),
        ("box", ctypes.c_uint32 * BOX_DIMENSIONS),
        ("dimensions", ctypes.c_uint32),
        ("swizzled", ctypes.c_uint32),
    )


class TensorMap(ctypes.Structure):
    """The argument of a kernel, encoded. Zeros: a map that is not used."""

    _fields_ = (("bytes", ctypes.c_char * MAP_BYTES),)


@dataclass(frozen=True, slots=True)
class Boxes:
    """Boxes of 32-bit words. ``sizes`` and ``box``: in words, then in rows and so on; ``strides``:
    bytes from a row to the next one and so on, multiples of 16. ``swizzled``: 16 bytes i of each
    128 bytes of a box stand at i ^ (number of the 128 bytes modulo 8)."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzled: bool = False


def tensor_map(tensor: torch.Tensor, boxes: Boxes) -> TensorMap:
    """The map of ``boxes`` of the memory of ``tensor``."""
    device = tensor.device
    return _encoded(tensor.data_ptr(), boxes, device.type == "cuda")


@lru_cache(maxsize=16384)
def _encoded(address: int, boxes: Boxes, has_driver: bool) -> TensorMap:
    count = len(boxes.sizes)
    sizes = (ctypes.c_uint64 * BOX_DIMENSIONS)(*boxes.sizes)
    strides = (ctypes.c_uint64 * BOX_DIMENSIONS)(*boxes.strides)
    box = (ctypes.c_uint32 * BOX_DIMENSIONS)(*boxes.box)
    every = (ctypes.c_uint32 * BOX_DIMENSIONS)(1, 1, 1)
    found = TensorMap()
    if not has_driver:
        described = Description(address, sizes, strides, box, count, boxes.swizzled)
        ctypes.memmove(ctypes.byref(found), ctypes.byref(described), ctypes.sizeof(described))
        return found
    space = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNMENT)
    at = -(-ctypes.addressof(space) // MAP_ALIGNMENT) * MAP_ALIGNMENT
    driver_ok(
        driver().cuTensorMapEncodeTiled(
            ctypes.c_void_p(at),
            _WORDS_OF_32_BITS,
            count,
            ctypes.c_void_p(address),
            sizes,
            strides,
            box,
            every,
            _NOT_INTERLEAVED,
            _SWIZZLE_128 if boxes.swizzled else 0,
            _NOT_PROMOTED,
            _ZEROS_OUTSIDE,
        ),
        f"to encode a tensor map of {boxes}",
    )
    ctypes.memmove(ctypes.byref(found), at, MAP_BYTES)
    return found
