"""The experts that rows go to."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Choice:
    """ids int64 and weights float32 [R, K]."""

    ids: torch.Tensor
    weights: torch.Tensor

    @property
    def top_k(self) -> int:
        return int(self.ids.shape[1])
