"""An op that the core does not have: SwiGLU with clipped operands.

A family binds it when it builds a model, ``context.ops.bind(CLIPPED_SWIGLU, arguments)``, and calls
the function that ``bind`` returns. The reference defines the result and runs if no back end can.
Other plugins may register back ends for the op by its name.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk.descriptors import YES, Verdict
from kinfolk_kernels.op import Op


@dataclass(frozen=True, slots=True)
class ClippedSwiGLUArguments:
    """g * sigmoid(``slope`` * g) * (u + 1) with g = min(gate, limit), u = up clipped to +-limit.

    Operands: gate and up [..., K] of one shape in ``dtype``. Result: [..., K] in ``dtype``,
    computed in float32.
    """

    limit: float
    slope: float
    dtype: torch.dtype


def clipped_swiglu(
    arguments: ClippedSwiGLUArguments, gate: torch.Tensor, up: torch.Tensor
) -> torch.Tensor:
    """The reference; see :class:`ClippedSwiGLUArguments`."""
    g = gate.float().clamp_max(arguments.limit)
    u = up.float().clamp(-arguments.limit, arguments.limit)
    return (g * (arguments.slope * g).sigmoid() * (u + 1)).to(arguments.dtype)


CLIPPED_SWIGLU = Op("clipped_swiglu", ClippedSwiGLUArguments, clipped_swiglu, capturable=True)


def supports_inplace(arguments: ClippedSwiGLUArguments) -> Verdict:
    if arguments.dtype != torch.float32:
        return Verdict(False, f"needs float32, not {arguments.dtype}")
    return YES


def clipped_swiglu_inplace(
    arguments: ClippedSwiGLUArguments, gate: torch.Tensor, up: torch.Tensor
) -> torch.Tensor:
    """The back end ``inplace``: overwrites both operands."""
    g = gate.clamp_max_(arguments.limit)
    u = up.clamp_(-arguments.limit, arguments.limit).add_(1)
    return u.mul_(g).mul_((arguments.slope * g).sigmoid_())
