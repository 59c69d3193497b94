"""SwiGLU's product in the memory of its first argument.

The core's reference computes in float32 and returns the type of ``up``. This one can promise the
same numbers only where both are float32 already, and may write only where nobody else reads.
"""

from __future__ import annotations

import torch

from kinfolk.descriptors import YES, Verdict


def supports(gate: torch.Tensor, up: torch.Tensor) -> Verdict:
    """Whether this call can be done; the reason if not."""
    for name, tensor in (("gate", gate), ("up", up)):
        if tensor.dtype != torch.float32:
            return Verdict(False, f"needs float32, not {tensor.dtype} ({name})")
    if not gate.is_contiguous() or gate.shape != up.shape:
        return Verdict(False, "needs a contiguous gate of the shape of up: it is overwritten")
    return YES


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up; overwrites ``gate``."""
    return torch.nn.functional.silu(gate, inplace=True).mul_(up)
