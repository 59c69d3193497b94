"""Rows of a token table in planes, on the GPU."""

from __future__ import annotations

import torch
import triton

from kinfolk_kernels.embedding.reference import PackedRows
from kinfolk_kernels.linear.dequantize import gather
from kinfolk_kernels.linear.dequantize_kernel import gather_kernel
from kinfolk_kernels.planes import Planes
from kinfolk_kernels.verdict import YES, Verdict, no

INTERPRETED = not isinstance(gather_kernel, triton.JITFunction)


def supports(
    tokens: torch.Tensor, weight: torch.Tensor | PackedRows, scale: float = 1.0
) -> Verdict:
    """Whether ``embedding`` can do this call."""
    if not (tokens.is_cuda or INTERPRETED):
        return no(f"it runs on CUDA devices, the tokens are on {tokens.device.type}")
    if not isinstance(weight, Planes):
        return no("the table is not in planes")
    if weight.device != tokens.device:
        return no(f"the table is on {weight.device}, the tokens on {tokens.device}")
    return YES


def embedding(
    tokens: torch.Tensor, weight: torch.Tensor | PackedRows, scale: float = 1.0
) -> torch.Tensor:
    """See the reference."""
    assert isinstance(weight, Planes)
    out = torch.empty(tokens.shape[0], weight.columns, device=tokens.device)
    if tokens.shape[0]:
        gather(weight, tokens, out, scale, asm=not INTERPRETED).run()
    return out
