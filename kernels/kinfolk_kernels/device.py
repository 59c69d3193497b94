"""Devices that Triton kernels run on: CUDA devices, and any device in Triton's interpreter."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton

SMALL_SHARED = 99 * 1024
"""Bytes of shared memory that a program may use on every supported device."""


def refuses_device(kernel: Any, device: torch.device, *dtypes: torch.dtype) -> str:
    """The reason why ``kernel`` cannot run on ``device`` with ``dtypes``; empty if it can."""
    interpreted = not isinstance(kernel, triton.JITFunction)
    if not interpreted and device.type != "cuda":
        return f"it runs on CUDA devices, the model is on {device.type}"
    if interpreted and torch.bfloat16 in dtypes:
        return "Triton's interpreter computes wrong numbers from bfloat16"
    return ""


def shared_memory(device: torch.device) -> int:
    """Bytes of shared memory that a program may use on ``device``."""
    return _shared_memory(device.index) if device.type == "cuda" else SMALL_SHARED


@cache
def _shared_memory(index: int) -> int:
    properties = triton.runtime.driver.active.utils.get_device_properties(index)
    return int(properties["max_shared_mem"])
