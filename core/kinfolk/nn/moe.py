"""Mixture of experts: a router, routed experts, and an optional shared one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from kinfolk.config import Activation
from kinfolk.experts.store import ExpertStore
from kinfolk.nn.context import BuildContext
from kinfolk_kernels.experts.reference import SharedExpert


@dataclass(frozen=True, slots=True)
class Router:
    """How rows choose experts, as data.

    ``weight`` float32 [E, width]. Scores are ``score`` of the logits; the ``top_k`` largest of
    score + ``bias`` are chosen and weigh their score divided by the sum, times ``scale``, times the
    expert's own ``expert_scale``.
    """

    weight: torch.Tensor
    score: Literal["softmax", "sigmoid"]
    top_k: int
    bias: torch.Tensor | None = None
    scale: float = 1.0
    expert_scale: torch.Tensor | None = None


class MoE:
    """Routed experts, plus the ``shared`` one of every row if there is one."""

    def __init__(
        self,
        context: BuildContext,
        router: Router,
        store: ExpertStore,
        activation: Activation = "silu",
        shared: SharedExpert | None = None,
    ) -> None:
        self.ops = context.ops
        self.router, self.store, self.activation = router, store, activation
        self.shared = shared

    def __call__(self, x: torch.Tensor, router_input: torch.Tensor | None = None) -> torch.Tensor:
        """x [R, width] -> float32 [R, width]; the router reads ``router_input`` if it is given."""
        router, store = self.router, self.store
        ids, weights = self.ops.route(
            x if router_input is None else router_input,
            router.weight,
            router.score,
            router.top_k,
            router.bias,
            router.scale,
            router.expert_scale,
        )
        return self.ops.experts(
            x,
            ids,
            weights,
            store.gate,
            store.up,
            store.down,
            store.bay_of_expert,
            self.activation,
            self.shared,
        )
