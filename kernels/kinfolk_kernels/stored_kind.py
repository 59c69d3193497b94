"""How a section of keys or values is stored, as far as kernels depend on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.codecs import FORMATS, Coded, Stored, dim_of, heads_of

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
"""Types of numbers by the name of their storage format."""

FLOATS = tuple(DTYPES.values())


@dataclass(frozen=True, slots=True)
class StoredKind:
    """``heads`` vectors of ``dim`` numbers a position: numbers of type ``dtype``, or codes of a
    ``format`` of :mod:`kinfolk_kernels.codecs`, in which case ``dtype`` is ``None``."""

    heads: int
    dim: int
    dtype: torch.dtype | None
    format: str = ""

    @classmethod
    def named(cls, heads: int, dim: int, format: str) -> StoredKind:
        """By the name of the format: ``f32``, ``f16``, ``bf16`` or one of codes."""
        dtype = DTYPES.get(format)
        return cls(heads, dim, dtype, format if dtype is None else "")

    @classmethod
    def of(cls, stored: Stored) -> StoredKind:
        if isinstance(stored, Coded):
            return cls(heads_of(stored), dim_of(stored), None, stored.format)
        return cls(heads_of(stored), dim_of(stored), stored.dtype)

    @property
    def refusal(self) -> str:
        """Why kernels cannot read or write the section; empty if they can."""
        if self.dtype is not None:
            return "" if self.dtype in FLOATS else f"keys or values of {self.dtype}"
        if self.format not in FORMATS:
            return f"keys or values stored as {self.format}"
        if self.dim & (self.dim - 1):
            return f"coded heads of {self.dim} dimensions, not a power of two"
        return ""
