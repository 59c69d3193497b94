"""``route`` by torch's matrix product."""

from __future__ import annotations

import torch

from kinfolk_kernels.linear.torch_backend import product as linear
from kinfolk_kernels.route.op import RouteArguments, choice


def route(arguments: RouteArguments, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """See :class:`RouteArguments`."""
    return choice(arguments, linear(x.float(), arguments.weight))
