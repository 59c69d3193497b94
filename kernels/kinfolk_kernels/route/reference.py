"""The reference of ``route``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from kinfolk_kernels.route.op import RouteArguments

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
