"""A matrix applied to rows."""

from __future__ import annotations

from typing import Any

import torch

from kinfolk.ops.table import Ops


class Linear:
    """y = x W^T with W [out, in], dense or quantised."""

    def __init__(self, ops: Ops, weight: Any) -> None:
        self.ops = ops
        self.weight = weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[R, in] -> [R, out] in the type of ``x``."""
        return self.ops.linear(x, self.weight)
