"""Mixture of experts: a router, routed experts, and an optional shared one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from kinfolk.config import Activation
from kinfolk.experts.cache import Landing, LayerExperts
from kinfolk.experts.store import ExpertStore
from kinfolk.nn.context import BuildContext
from kinfolk_kernels.experts.op import EXPERTS, ExpertsArguments, SharedExpert
from kinfolk_kernels.fetch.op import FETCH, FetchArguments
from kinfolk_kernels.fetch_experts.op import FETCH_EXPERTS, FetchExpertsArguments
from kinfolk_kernels.land.op import LAND, LandArguments
from kinfolk_kernels.route.op import ROUTE, RouteArguments, Score

LANDED_ROWS = 2
"""Steps of so many rows read no expert from host memory where it is if there are landing bays. On
an H100, rows that share an expert cost the link its bytes once each, and reading in place reaches
0.81 of the rate of a large copy for 4 rows and 0.46 for 2048, landing 0.87 to 0.91. One row reads
as fast in place: 0.83, without a launch more."""


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
    almost all of them, and leaves bays alone. A step of one row does both in one op, if the back
    end of both has it. What is still far is read where it is, or with
    ``LANDED_ROWS`` rows or more from landing bays, where all of it is copied before.
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
        arguments = ExpertsArguments(
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
        )
        self.experts = context.ops.bind(EXPERTS, arguments)
        self.fetch_rows, placed, rows = context.fetch_rows, store.placed, context.rows
        self.fetch: Callable[[torch.Tensor], None] | None = None
        self.fetch_experts: Callable[..., torch.Tensor] | None = None
        if placed is not None and context.fetch_rows and rows is not None:
            fetch = fetch_arguments(placed, rows)
            self.fetch = context.ops.bind(FETCH, fetch)
            self.fetch_experts = context.ops.bind_fused(
                FETCH_EXPERTS,
                FetchExpertsArguments(fetch, arguments),
                ((FETCH, fetch), (EXPERTS, arguments)),
            )
        # With fewer rows than these, all that they choose finds a bay: it is near or is fetched.
        self.crowded_rows = 0
        self.land: Callable[[torch.Tensor], None] | None = None
        if placed is not None and placed.landing is not None and rows is not None:
            self.land = context.ops.bind(LAND, land_arguments(placed, placed.landing, rows))
            there = placed.landing.bay_of_expert
            arguments = replace(arguments, far=store.landing, bay_of_expert=there)
            self.landed = context.ops.bind(EXPERTS, arguments)
            self.crowded_rows = (placed.bays - placed.pinned) // router.top_k + 1

    def __call__(self, x: torch.Tensor, router_input: torch.Tensor | None = None) -> torch.Tensor:
        """x [R, width] -> float32 [R, width]; the router reads ``router_input`` [R, width], of the
        dtype of x or float32, by default x."""
        ids, weights = self.route(x if router_input is None else router_input)
        rows, least = x.shape[0], LANDED_ROWS
        if rows == 1 and self.fetch_experts is not None:
            return self.fetch_experts(x, ids, weights)
        if self.fetch is not None and rows <= self.fetch_rows:
            self.fetch(ids)
            least = max(least, self.crowded_rows)
        if self.land is None or rows < least:
            return self.experts(x, ids, weights)
        self.land(ids)
        return self.landed(x, ids, weights)


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


def land_arguments(placed: LayerExperts, landing: Landing, rows: torch.Tensor) -> LandArguments:
    """The arguments of ``land`` for the records of a layer."""
    return LandArguments(
        placed.homes,
        landing.records,
        placed.bay_of_expert,
        landing.bay_of_expert,
        rows,
        placed.bays,
    )
