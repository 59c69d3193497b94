"""Dtypes of model tensors, by name, and their sizes. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

DtypeName = Literal["f32", "f16", "bf16"]

DTYPE_BYTES: Final[Mapping[str, int]] = MappingProxyType({"f32": 4, "f16": 2, "bf16": 2})
"""Bytes of one number, by dtype."""
