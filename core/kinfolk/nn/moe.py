"""Mixture of experts: a router, routed experts, and an optional shared one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kinfolk.config import Activation
from kinfolk.experts.cache import LayerExperts
from kinfolk.experts.store import ExpertStore
from kinfolk.nn.context import BuildContext
from kinfolk_kernels.experts.op import EXPERTS, ExpertsArguments, SharedExpert
from kinfolk_kernels.fetch.op import FETCH, FetchArguments
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
    """Routed experts, plus the ``shared`` expert, which every row uses, if the model has one.

    If the loader has placed the experts, those that a step chooses are fetched before they are
    used, unless it has more rows than ``BuildContext.fetch_rows``: such a step, of a prompt, uses
    almost all of them, and reads them where they are.
    """

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
                store.far,
                context.rows,
            ),
        )
        self.fetch_rows = context.fetch_rows
        self.fetch: Callable[[torch.Tensor], None] | None = None
        if store.placed is not None and context.fetch_rows and context.rows is not None:
            arguments = fetch_arguments(store.placed, context.rows)
            self.fetch = context.ops.bind(FETCH, arguments)

    def __call__(self, x: torch.Tensor, router_input: torch.Tensor | None = None) -> torch.Tensor:
        """x [R, width] -> float32 [R, width]; the router reads ``router_input`` [R, width], of the
        dtype of x or float32, by default x."""
        ids, weights = self.route(x if router_input is None else router_input)
        if self.fetch is not None and x.shape[0] <= self.fetch_rows:
            self.fetch(ids)
        return self.experts(x, ids, weights)


def fetch_arguments(placed: LayerExperts, rows: torch.Tensor) -> FetchArguments:
    """The arguments of ``fetch`` for the records of a layer."""
    return FetchArguments(
        placed.near,
        placed.homes,
        placed.bay_of_expert,
        placed.expert_of_bay,
        placed.score,
        placed.uses,
        placed.traffic,
        rows,
        placed.pinned,
    )
