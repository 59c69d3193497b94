"""The op ``softcap``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.op import Op
from kinfolk_kernels.softcap.reference import softcap


@dataclass(frozen=True, slots=True)
class SoftcapArguments:
    """cap * tanh(logits / cap): logits stay between -cap and cap (Bello et al., 2016).

    Operand: contiguous logits float32 [R, V]. Result: float32 [R, V].
    """

    cap: float
    device: torch.device


SOFTCAP = Op("softcap", SoftcapArguments, softcap, capturable=True)
