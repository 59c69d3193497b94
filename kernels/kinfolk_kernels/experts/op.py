"""The op ``experts``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

import torch

from kinfolk_kernels.act_and_mul.reference import Activation
from kinfolk_kernels.experts.reference import S, SharedExpert, experts
from kinfolk_kernels.op import Op


@dataclass(frozen=True, slots=True)
class ExpertsArguments(Generic[S]):
    """The feed-forward experts of a layer: a row's result is the sum over its experts, in the order
    of its ids, of weight * down(activation(gate x) * up x), plus that of the ``shared`` expert.

    ``gate`` and ``up`` [bays, F, W] and ``down`` [bays, W, F] hold the experts in bays, dense or
    quantised; ``bay_of_expert`` int64 [E] is the bay of each. Operands: x [R, W] in ``dtype``, and
    the result of :class:`RouteArguments`: ids int64 [R, top_k] and weights float32 [R, top_k].
    Result: float32 [R, W]. It depends only on the row and on its experts' weights, not on bays or
    on other rows.
    """

    gate: S
    up: S
    down: S
    bay_of_expert: torch.Tensor
    activation: Activation
    top_k: int
    dtype: torch.dtype
    shared: SharedExpert | None = None

    @property
    def count(self) -> int:
        """E."""
        return int(self.bay_of_expert.shape[0])

    @property
    def width(self) -> int:
        """W."""
        return int(self.down.shape[1])

    @property
    def channels(self) -> int:
        """F."""
        return int(self.gate.shape[1])

    @property
    def shared_channels(self) -> int:
        """Channels of the shared expert; 0 without one."""
        return 0 if self.shared is None else int(self.shared.gate.shape[0])


EXPERTS = Op("experts", ExpertsArguments, experts)
