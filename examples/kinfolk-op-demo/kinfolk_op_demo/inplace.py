"""A back end of the core's op ``act_and_mul`` that writes into its first operand.

The core's reference computes in float32 and returns the dtype of ``up``. This back end supports
float32 operands only and returns the same numbers. It may overwrite ``gate``, which a model does
not read again.
"""

from __future__ import annotations

import torch

from kinfolk.descriptors import YES, Verdict
from kinfolk_kernels.act_and_mul.op import ActAndMulArguments


def supports(arguments: ActAndMulArguments) -> Verdict:
    """Called once, when a model is built; a refusal states the reason."""
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
