"""The op ``softcap``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.op import Op


@dataclass(frozen=True, slots=True)
class SoftcapArguments:
    """cap * tanh(logits / cap): logits stay between -cap and cap (Bello et al., 2016).

    Operand: contiguous logits float32 [R, V]. Result: float32 [R, V].
    """

    cap: float
    device: torch.device


def softcap(arguments: SoftcapArguments, logits: torch.Tensor) -> torch.Tensor:
    """See :class:`SoftcapArguments`."""
    return (logits / arguments.cap).tanh() * arguments.cap


SOFTCAP = Op("softcap", SoftcapArguments, softcap, capturable=True)
