"""The op ``route``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from kinfolk_kernels.op import Op


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


Score = Literal["softmax", "sigmoid"]


def route(arguments: RouteArguments, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See :class:`RouteArguments`."""
    return choice(arguments, x.float() @ arguments.weight.T)


def choice(arguments: RouteArguments, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids int64 and weights float32 [R, top_k] by logits float32 [R, E]."""
    scores = logits.softmax(1) if arguments.score == "softmax" else logits.sigmoid()
    chosen_by = scores if arguments.bias is None else scores + arguments.bias
    ids = chosen_by.sort(dim=1, descending=True, stable=True).indices[:, : arguments.top_k]
    weights = scores.gather(1, ids)
    weights = weights / weights.sum(1, keepdim=True) * arguments.scale
    expert_scale = arguments.expert_scale
    return ids, weights if expert_scale is None else weights * expert_scale[ids]


ROUTE = Op("route", RouteArguments, route)
