"""Sections of pools as kernel arguments: pointers and strides, and which sections are refused."""

from __future__ import annotations

from typing import Any

import torch

from kinfolk_kernels.codecs import FORMATS, Coded, Stored
from kinfolk_kernels.rows import CHUNK_POSITIONS
from kinfolk_kernels.stored_kind import FLOATS


def padded(dim: int) -> int:
    """The power of two that a dimension is padded to, at least 16."""
    return max(16, 1 << (dim - 1).bit_length())


def format_of(stored: Stored) -> str:
    return stored.format if isinstance(stored, Coded) else "plain"


def row_of(stored: Stored) -> int:
    """Elements of a stored vector, or bytes of its codes."""
    return int((stored.codes if isinstance(stored, Coded) else stored).shape[-1])


def section_arguments(name: str, stored: Stored) -> dict[str, Any]:
    """The planes of a section, and the stride between blocks of each, in elements."""
    if isinstance(stored, Coded):
        planes = (stored.codes, stored.scales)
        strides = (stored.codes.stride(0), stored.scales.stride(0))
    else:
        planes, strides = (stored, stored), (stored.stride(0), 0)
    return {
        f"{name}_ptr": planes[0],
        f"{name}_scales": planes[1],
        f"{name}_block": strides[0],
        f"{name}s_block": strides[1],
    }


def planes_of(stored: Stored) -> tuple[torch.Tensor, ...]:
    return (stored.codes, stored.scales) if isinstance(stored, Coded) else (stored,)


def refuses(pool: Stored, arena: Stored) -> str:
    """The reason why kernels cannot read or write a section; empty if they can."""
    if format_of(pool) != format_of(arena):
        return "pool and arena are stored in different formats"
    return _refuses(pool) or _refuses(arena)


def _refuses(stored: Stored) -> str:
    for plane in planes_of(stored):
        width = plane.shape[-1]
        if plane.shape[0] and plane[0].stride() != (CHUNK_POSITIONS * width, width, 1):
            return "the vectors of a block are not contiguous, head by head"
    if isinstance(stored, Coded):
        if stored.format not in FORMATS:
            return f"keys or values stored as {stored.format}"
        if stored.dim & (stored.dim - 1):
            return f"coded heads of {stored.dim} dimensions, not a power of two"
    elif stored.dtype not in FLOATS:
        return f"keys or values of {stored.dtype}"
    return ""
