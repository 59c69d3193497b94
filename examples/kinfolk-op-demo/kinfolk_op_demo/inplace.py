"""A back end of the core's op ``act_and_mul`` that writes into its first operand.

The core's reference computes in float32 and returns the type of ``up``. This back end promises the
same numbers where both are float32 already, and may write only where nothing else reads.
"""

from __future__ import annotations

import torch

from kinfolk.descriptors import YES, Verdict
from kinfolk_kernels.act_and_mul.op import ActAndMulArguments


def supports(arguments: ActAndMulArguments) -> Verdict:
    """Asked once, when a model is built; the reason if not."""
    if arguments.activation != "silu":
        return Verdict(False, f"has no {arguments.activation}")
    if arguments.dtype != torch.float32:
        return Verdict(False, f"needs float32, not {arguments.dtype}")
    return YES


def act_and_mul(
    arguments: ActAndMulArguments, gate: torch.Tensor, up: torch.Tensor
) -> torch.Tensor:
    """silu(gate) * up; overwrites ``gate``."""
    return torch.nn.functional.silu(gate, inplace=True).mul_(up)
