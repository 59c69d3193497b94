"""Devices that Triton kernels run on: CUDA devices, and any device in Triton's interpreter."""

from __future__ import annotations

from typing import Any

import torch
import triton


def refuses_device(kernel: Any, device: torch.device, *dtypes: torch.dtype) -> str:
    """The reason why ``kernel`` cannot run on ``device`` with ``dtypes``; empty if it can."""
    interpreted = not isinstance(kernel, triton.JITFunction)
    if not interpreted and device.type != "cuda":
        return f"it runs on CUDA devices, the model is on {device.type}"
    if interpreted and torch.bfloat16 in dtypes:
        return "Triton's interpreter computes wrong numbers from bfloat16"
    return ""
