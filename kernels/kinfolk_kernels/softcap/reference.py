"""The reference of ``softcap``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from kinfolk_kernels.softcap.op import SoftcapArguments


def softcap(arguments: SoftcapArguments, logits: torch.Tensor) -> torch.Tensor:
    """See :class:`SoftcapArguments`."""
    return (logits / arguments.cap).tanh() * arguments.cap
