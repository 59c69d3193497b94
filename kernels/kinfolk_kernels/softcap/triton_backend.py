"""Bent logits on the GPU, in one launch; see the reference."""

from __future__ import annotations

import torch

from kinfolk_kernels.launch import Launch
from kinfolk_kernels.sections import out_of_reach
from kinfolk_kernels.softcap.kernel import softcap_kernel
from kinfolk_kernels.verdict import YES, Verdict, no

TILE = 2048
"""Numbers a program."""


def supports(logits: torch.Tensor, cap: float) -> Verdict:
    """Whether ``softcap`` can do this call."""
    reason = out_of_reach(softcap_kernel, logits)
    if reason:
        return no(reason)
    if logits.dtype != torch.float32 or not logits.is_contiguous():
        return no(f"the logits are not contiguous float32 ({logits.dtype})")
    return YES


def softcap(logits: torch.Tensor, cap: float) -> torch.Tensor:
    """See the reference."""
    out = torch.empty_like(logits)
    if logits.numel():
        bend(logits, cap, out).run()
    return out


def bend(logits: torch.Tensor, cap: float, out: torch.Tensor) -> Launch:
    """The launch that fills ``out``."""
    count = logits.numel()
    return Launch(
        softcap_kernel,
        (-(-count // TILE),),
        {"logits_ptr": logits, "out_ptr": out, "count": count, "cap": float(cap)},
        {"TILE": TILE},
    )
