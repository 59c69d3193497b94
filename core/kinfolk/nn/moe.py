"""Mixture of experts: a router, routed experts, and an optional shared one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from kinfolk.config import Activation
from kinfolk.experts.store import ExpertStore
from kinfolk.nn.context import BuildContext


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
    """Routed experts, plus ``shared`` on every row, times the sigmoid of its gate if it has one.

    ``shared_gate`` float32 [width].
    """

    def __init__(
        self,
        context: BuildContext,
        router: Router,
        store: ExpertStore,
        activation: Activation = "silu",
        shared: Callable[[torch.Tensor], torch.Tensor] | None = None,
        shared_gate: torch.Tensor | None = None,
    ) -> None:
        self.ops = context.ops
        self.router, self.store, self.activation = router, store, activation
        self.shared, self.shared_gate = shared, shared_gate

    def __call__(self, x: torch.Tensor, router_input: torch.Tensor | None = None) -> torch.Tensor:
        """x [R, width] -> float32 [R, width]; the router reads ``router_input`` if it is given."""
        router, store = self.router, self.store
        seen = x if router_input is None else router_input
        logits: Any = self.ops.linear(seen.float(), router.weight)
        ids, weights = self.ops.route(
            logits, router.score, router.top_k, router.bias, router.scale, router.expert_scale
        )
        out = self.ops.experts(
            x, ids, weights, store.gate, store.up, store.down, store.bay_of_expert, self.activation
        )
        if self.shared is None:
            return out
        return self.ops.add_shared_expert(out, self.shared(x), x, self.shared_gate)
