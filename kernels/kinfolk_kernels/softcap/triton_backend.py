"""``softcap`` on the GPU, in one launch."""

from __future__ import annotations

import torch

from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.softcap.kernel import softcap_kernel
from kinfolk_kernels.softcap.op import SoftcapArguments
from kinfolk_kernels.verdict import YES, Verdict, no

SOFTCAP_TILE_NUMBERS = 2048
"""Numbers that a program computes."""


def supports(arguments: SoftcapArguments) -> Verdict:
    reason = refuses_device(softcap_kernel, arguments.device)
    return no(reason) if reason else YES


def softcap(arguments: SoftcapArguments, logits: torch.Tensor) -> torch.Tensor:
    """See :class:`SoftcapArguments`."""
    capped = torch.empty_like(logits)
    if logits.numel():
        launch(arguments.cap, logits, capped).run()
    return capped


def launch(cap: float, logits: torch.Tensor, capped: torch.Tensor) -> Launch:
    """The launch that computes ``capped`` [R, V] from ``logits`` [R, V]."""
    count = logits.numel()
    return Launch(
        softcap_kernel,
        (-(-count // SOFTCAP_TILE_NUMBERS),),
        {"logits_ptr": logits, "out_ptr": capped, "count": count, "cap": float(cap)},
        {"TILE": SOFTCAP_TILE_NUMBERS},
    )
