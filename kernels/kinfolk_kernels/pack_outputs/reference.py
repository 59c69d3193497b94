"""A step in one line of numbers, as the host hears of it."""

from __future__ import annotations

import torch


def pack_outputs(
    hidden: torch.Tensor,
    last_row: torch.Tensor,
    finite: torch.Tensor,
    rows: torch.Tensor,
    n_keep: torch.Tensor,
    following: torch.Tensor,
    path: torch.Tensor,
) -> torch.Tensor:
    """Of B sequences and L lanes of T rows at most, side by side as int64 [B + 3 L + L T]:

    whether the last row of a sequence is finite in hidden [R, H] (``last_row`` int64 [B]), whether
    the logits of a lane's rows are (``finite`` bool [n], ``rows`` int64 [L, T], -1 = padding), and
    ``n_keep``, ``following`` [L] and ``path`` [L, T] as they are.
    """
    sound = hidden[last_row].isfinite().all(1)
    lanes = torch.cat((finite, finite.new_ones(1)))[rows].all(1)
    return torch.cat((sound.long(), lanes.long(), n_keep, following, path.flatten()))
