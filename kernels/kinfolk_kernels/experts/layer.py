"""What an experts call is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from kinfolk_kernels.act_and_mul.reference import Activation
from kinfolk_kernels.experts.reference import SharedExpert
from kinfolk_kernels.experts.stacks import Stack

COLUMNS = 1024
"""Numbers a program that only moves and adds."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a layer: stacks, the bay of every expert, the activation between, and the
    expert of every row."""

    gate: Stack
    up: Stack
    down: Stack
    bays: torch.Tensor
    activation: Activation
    shared: SharedExpert | None = None

    def beside(self, shared: SharedExpert | None) -> Experts:
        """These experts and the one of every row."""
        return replace(self, shared=shared)

    @property
    def count(self) -> int:
        return int(self.bays.shape[0])

    @property
    def width(self) -> int:
        return int(self.down.shape[1])

    @property
    def channels(self) -> int:
        return int(self.gate.shape[1])

    @property
    def shared_channels(self) -> int:
        """0 without a shared expert."""
        return 0 if self.shared is None else int(self.shared.gate.shape[0])


@dataclass(frozen=True, slots=True)
class Choice:
    """ids int64 and weights float32 [R, K]."""

    ids: torch.Tensor
    weights: torch.Tensor

    @property
    def top_k(self) -> int:
        return int(self.ids.shape[1])
