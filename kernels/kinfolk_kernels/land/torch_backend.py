"""``land`` in torch: arrays of experts, and one copy of all records."""

from __future__ import annotations

import torch

from kinfolk_kernels.experts.op import real_rows
from kinfolk_kernels.land.op import LandArguments


def land(arguments: LandArguments, ids: torch.Tensor) -> None:
    """See :class:`LandArguments`."""
    bays, bay_of = arguments.bays, arguments.bay_of_expert
    real = ids[: real_rows(arguments.rows, ids.shape[0])].flatten()
    used = real.bincount(minlength=arguments.count) > 0
    is_far = bay_of >= bays
    coming = (used & is_far).nonzero().flatten()
    landing, far = arguments.landing, arguments.far
    landing[: len(coming)] = far[coming.to(far.device)].to(landing.device)
    arguments.landed.copy_(bay_of.masked_fill(is_far, -1))
    arguments.landed[coming] = bays + torch.arange(len(coming), device=bay_of.device)
