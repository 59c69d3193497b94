"""The op ``route``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.op import Op
from kinfolk_kernels.route.reference import Score, route


@dataclass(frozen=True, slots=True)
class RouteArguments:
    """Chooses the experts of each row, and their weights.

    Logits are the products of rows with ``weight`` float32 [E, W], in float32 whatever the dtype of
    the rows. Scores are their softmax over all experts or their sigmoids. The ``top_k`` experts
    with the largest score + ``bias`` float32 [E] are chosen, the lowest id of equals; their weights
    are the scores without the bias, divided by their sum, times ``scale``, times ``expert_scale``
    float32 [E] of each. Operand: x [R, W] in ``dtype`` or float32. Result: expert ids int64
    [R, top_k], best first, and weights float32 [R, top_k].
    """

    weight: torch.Tensor
    score: Score
    top_k: int
    dtype: torch.dtype
    bias: torch.Tensor | None = None
    scale: float = 1.0
    expert_scale: torch.Tensor | None = None


ROUTE = Op("route", RouteArguments, route)
