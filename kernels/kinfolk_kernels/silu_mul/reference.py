"""SwiGLU's elementwise part (Shazeer, 2020)."""

from __future__ import annotations

import torch


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, computed in float32, in the type of ``up``."""
    return (torch.nn.functional.silu(gate.float()) * up.float()).to(up.dtype)
