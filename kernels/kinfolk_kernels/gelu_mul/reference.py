"""GeGLU's elementwise part with the tanh form of GELU (Hendrycks and Gimpel, 2016)."""

from __future__ import annotations

import torch


def gelu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """gelu_tanh(gate) * up, computed in float32, in the type of ``up``."""
    curved = torch.nn.functional.gelu(gate.float(), approximate="tanh")
    return (curved * up.float()).to(up.dtype)
