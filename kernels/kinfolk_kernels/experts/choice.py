"""The experts that a router has chosen."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Choice:
    """The K experts of each row: ids int64 [R, K] and weights float32 [R, K]."""

    ids: torch.Tensor
    weights: torch.Tensor

    @property
    def top_k(self) -> int:
        return int(self.ids.shape[1])
