"""The op ``pack_outputs``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.op import Op


@dataclass(frozen=True, slots=True)
class PackOutputsArguments:
    """Packs all outputs that the host reads of a step into one tensor int64 [B + 3 S + 2 S T].

    Operands, for B sequences and S sampled ones of at most T rows: ``hidden`` [R, H], floating
    point; ``spans`` int32 [B, 4] of the row layout; ``finite`` bool [n], whether each row of logits
    is finite; ``rows`` int64 [S, T], the row of logits of each row, -1 = padding; ``tokens`` int64
    [S, T] of these rows, contiguous as all of these are; ``n_keep``, ``following`` int64 [S] and
    ``path`` int64 [S, T]. Result, in this order: whether the last row of each sequence is finite in
    ``hidden`` (undefined for a sequence without rows), whether all logits of each sampled one are
    finite, then ``n_keep``, ``following`` and ``path`` unchanged, then [S, T] the tokens that each
    sampled sequence emits, those of ``path`` behind the first and ``following``, padded with -1.
    """

    device: torch.device


def pack_outputs(
    arguments: PackOutputsArguments,
    hidden: torch.Tensor,
    spans: torch.Tensor,
    finite: torch.Tensor,
    rows: torch.Tensor,
    tokens: torch.Tensor,
    n_keep: torch.Tensor,
    following: torch.Tensor,
    path: torch.Tensor,
) -> torch.Tensor:
    """See :class:`PackOutputsArguments`."""
    last = (spans[:, 0] + spans[:, 1] - 1).clamp_min(0)
    sound = hidden[last].isfinite().all(1)
    sampled = torch.cat((finite, finite.new_ones(1)))[rows].all(1)
    place = torch.arange(path.shape[1], device=path.device)
    behind = torch.nn.functional.pad(path[:, 1:], (0, 1)).clamp_min(0)
    emitted = torch.where(place + 1 < n_keep[:, None], tokens.gather(1, behind), -1)
    emitted = torch.where(place + 1 == n_keep[:, None], following[:, None], emitted)
    parts = (sound.long(), sampled.long(), n_keep, following, path.flatten(), emitted.flatten())
    return torch.cat(parts)


PACK_OUTPUTS = Op("pack_outputs", PackOutputsArguments, pack_outputs, capturable=True)
