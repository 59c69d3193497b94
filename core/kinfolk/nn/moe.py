"""Mixture of experts: a router, routed experts, and an optional shared one."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk.config import Activation
from kinfolk.experts.store import ExpertStore
from kinfolk.nn.context import BuildContext
from kinfolk_kernels.experts.op import EXPERTS, ExpertsArguments, SharedExpert
from kinfolk_kernels.route.op import ROUTE, RouteArguments, Score


@dataclass(frozen=True, slots=True)
class Router:
    """The parameters of a router.

    ``weight`` float32 [E, width] computes logits of E experts; ``score`` is the function that turns
    them into scores. A row chooses the ``top_k`` experts with the largest score + ``bias`` [E]. The
    weight of a chosen expert is its score, divided by the sum over the chosen ones, times
    ``scale``, times its entry of ``expert_scale`` [E].
    """

    weight: torch.Tensor
    score: Score
    top_k: int
    bias: torch.Tensor | None = None
    scale: float = 1.0
    expert_scale: torch.Tensor | None = None


class MoE:
    """Routed experts, plus the ``shared`` expert, which every row uses, if the model has one."""

    def __init__(
        self,
        context: BuildContext,
        router: Router,
        store: ExpertStore,
        activation: Activation = "silu",
        shared: SharedExpert | None = None,
    ) -> None:
        self.store = store
        self.route = context.ops.bind(
            ROUTE,
            RouteArguments(
                router.weight,
                router.score,
                router.top_k,
                context.dtype,
                router.bias,
                router.scale,
                router.expert_scale,
            ),
        )
        self.experts = context.ops.bind(
            EXPERTS,
            ExpertsArguments(
                store.gate,
                store.up,
                store.down,
                store.bay_of_expert,
                activation,
                router.top_k,
                context.dtype,
                shared,
            ),
        )

    def __call__(self, x: torch.Tensor, router_input: torch.Tensor | None = None) -> torch.Tensor:
        """x [R, width] -> float32 [R, width]; the router reads ``router_input`` [R, width], of the
        dtype of x or float32, by default x."""
        ids, weights = self.route(x if router_input is None else router_input)
        return self.experts(x, ids, weights)
