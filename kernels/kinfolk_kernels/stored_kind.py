"""The storage of a section of keys or values: the properties that kernels depend on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.codecs import FORMATS, Coded, Stored, dim_of, heads_of

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
"""Dtypes of plain numbers, by storage format."""

FLOATS = tuple(DTYPES.values())


@dataclass(frozen=True, slots=True)
class StoredKind:
    """``heads`` vectors of ``dim`` numbers for each position: numbers of ``dtype``, or codes of a
    ``format`` of :mod:`kinfolk_kernels.codecs`, in which case ``dtype`` is ``None``."""

    heads: int
    dim: int
    dtype: torch.dtype | None
    format: str = ""

    @classmethod
    def named(cls, heads: int, dim: int, format: str) -> StoredKind:
        """The kind for a format by name: ``f32``, ``f16``, ``bf16`` or a quantised one."""
        dtype = DTYPES.get(format)
        return cls(heads, dim, dtype, format if dtype is None else "")

    @classmethod
    def of(cls, stored: Stored) -> StoredKind:
        if isinstance(stored, Coded):
            return cls(heads_of(stored), dim_of(stored), None, stored.format)
        return cls(heads_of(stored), dim_of(stored), stored.dtype)

    @property
    def refusal(self) -> str:
        """The reason why kernels cannot read or write the section; empty if they can."""
        if self.dtype is not None:
            return "" if self.dtype in FLOATS else f"keys or values of {self.dtype}"
        if self.format not in FORMATS:
            return f"keys or values stored as {self.format}"
        if self.dim & (self.dim - 1):
            return f"coded heads of {self.dim} dimensions, not a power of two"
        return ""
