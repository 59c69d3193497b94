"""The reference of ``pack_outputs``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from kinfolk_kernels.pack_outputs.op import PackOutputsArguments


def pack_outputs(
    arguments: PackOutputsArguments,
    hidden: torch.Tensor,
    spans: torch.Tensor,
    finite: torch.Tensor,
    rows: torch.Tensor,
    n_keep: torch.Tensor,
    following: torch.Tensor,
    path: torch.Tensor,
) -> torch.Tensor:
    """See :class:`PackOutputsArguments`."""
    last = (spans[:, 0] + spans[:, 1] - 1).clamp_min(0)
    sound = hidden[last].isfinite().all(1)
    sampled = torch.cat((finite, finite.new_ones(1)))[rows].all(1)
    return torch.cat((sound.long(), sampled.long(), n_keep, following, path.flatten()))
