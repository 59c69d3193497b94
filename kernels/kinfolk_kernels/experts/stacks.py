"""Stacks of matrices, and single ones, as arguments of the experts' kernels."""

from __future__ import annotations

from typing import Any

import torch

from kinfolk_kernels.planes import GROUP_WEIGHTS, LAYOUTS, Planes, PlanesStack
from kinfolk_kernels.stored_kind import FLOATS

DENSE = -1
"""The format number of dense matrices."""

Stack = torch.Tensor | PlanesStack
Matrix = torch.Tensor | Planes


def format_of(stack: Stack | Matrix) -> int:
    return DENSE if isinstance(stack, torch.Tensor) else LAYOUTS[stack.format].number


def type_of(stack: Stack) -> torch.dtype:
    """The dtype in which tensor cores multiply the matrices."""
    return stack.dtype if isinstance(stack, torch.Tensor) else torch.float16


def tensors_of(stack: Stack) -> tuple[torch.Tensor, ...]:
    return (stack,) if isinstance(stack, torch.Tensor) else stack.tensors


def pointers(name: str, stack: Stack | Matrix, *, as_bytes: bool) -> dict[str, torch.Tensor]:
    """The planes as kernel arguments, with codes and high bits ``as_bytes`` or as words. An absent
    plane is replaced by one that exists."""
    if isinstance(stack, torch.Tensor):
        return dict.fromkeys(
            (f"{name}_q", f"{name}_high", f"{name}_scales", f"{name}_supers"), stack
        )
    codes = stack.q.view(torch.uint8) if as_bytes else stack.q
    high = codes
    if stack.high is not None:
        high = stack.high.view(torch.uint8) if as_bytes else stack.high
    return {
        f"{name}_q": codes,
        f"{name}_high": high,
        f"{name}_scales": stack.supers if stack.scales is None else stack.scales,
        f"{name}_supers": stack.supers,
    }


def steps(stack: Stack, *, as_bytes: bool) -> dict[str, int]:
    """Strides between matrices, in elements of ``pointers``."""
    if isinstance(stack, torch.Tensor):
        return {"q_step": stack.stride(0), "high_step": 0, "scales_step": 0, "supers_step": 0}
    size = 4 if as_bytes else 1
    return {
        "q_step": stack.q.stride(0) * size,
        "high_step": 0 if stack.high is None else stack.high.stride(0) * size,
        "scales_step": 0 if stack.scales is None else stack.scales.stride(0),
        "supers_step": stack.supers.stride(0),
    }


def refuses(stack: Any, name: str) -> str:
    """The reason why the kernels cannot read a stack; empty if they can."""
    if isinstance(stack, torch.Tensor):
        if stack.dtype not in FLOATS:
            return f"{name} is of {stack.dtype}"
        if stack.stride()[1:] != (stack.shape[2], 1):
            return f"the matrices of {name} are not contiguous"
        return ""
    if not isinstance(stack, PlanesStack):
        return f"{name} is neither in planes nor plain numbers ({type(stack).__name__})"
    if stack.columns % GROUP_WEIGHTS:
        return f"{name} has rows of {stack.columns}, no multiple of {GROUP_WEIGHTS}"
    return ""
