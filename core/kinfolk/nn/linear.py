"""Matrices applied to rows."""

from __future__ import annotations

from collections.abc import Iterable
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


class Linears:
    """Matrices that read the same rows, dense or quantised; a GPU does them in one go."""

    def __init__(self, ops: Ops, weights: Iterable[Any]) -> None:
        self.ops = ops
        self.weights = tuple(weights)

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[R, in] -> [R, out] for each matrix, in the type of ``x``."""
        return self.ops.linears(x, self.weights)
