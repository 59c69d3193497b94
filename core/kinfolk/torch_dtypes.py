"""torch dtypes by the names in settings, plans and host arrays."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import torch

from kinfolk.dtypes import DtypeName

TORCH_DTYPES: Final[Mapping[str, torch.dtype]] = MappingProxyType(
    {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
)
"""torch dtypes by the names of ``kinfolk.dtypes``."""

DTYPE_NAMES: Final[Mapping[torch.dtype, DtypeName]] = MappingProxyType(
    {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
)
"""The reverse of ``TORCH_DTYPES``."""

ARRAY_DTYPES: Final[Mapping[str, torch.dtype]] = MappingProxyType(
    {
        "int64": torch.int64,
        "int32": torch.int32,
        "float32": torch.float32,
        "float64": torch.float64,
    }
)
"""torch dtypes by NumPy's names."""
