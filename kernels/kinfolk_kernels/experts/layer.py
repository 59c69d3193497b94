"""What an experts call is made of."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.curves import GELU, SILU
from kinfolk_kernels.experts.reference import Activation
from kinfolk_kernels.experts.stacks import Stack

CURVES = {"silu": SILU.value, "gelu_tanh": GELU.value}

COLUMNS = 1024
"""Numbers a program that only moves and adds."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a layer: stacks, the bay of every expert, and the activation between."""

    gate: Stack
    up: Stack
    down: Stack
    bays: torch.Tensor
    activation: Activation

    @property
    def count(self) -> int:
        return int(self.bays.shape[0])

    @property
    def width(self) -> int:
        return int(self.down.shape[1])

    @property
    def channels(self) -> int:
        return int(self.gate.shape[1])


@dataclass(frozen=True, slots=True)
class Choice:
    """ids int64 and weights float32 [R, K]."""

    ids: torch.Tensor
    weights: torch.Tensor

    @property
    def top_k(self) -> int:
        return int(self.ids.shape[1])
