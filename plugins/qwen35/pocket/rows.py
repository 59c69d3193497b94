"""Training rows: a row begins where a file, a function or a class begins, if one is near.

The model is used with prompts that begin at position 0 with an empty state, so training rows begin
in the same way. The rows of a step depend only on the seed and the step: a resumed run gets the
same rows.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Rows:
    """Rows from ``tokens`` (int32 [n], on the training device); ``starts`` are sorted offsets."""

    def __init__(self, tokens: Tensor, starts: NDArray[np.int64], seed: int) -> None:
        self.tokens = tokens
        self.starts = starts
        self.seed = seed
        self._epoch: tuple[tuple[int, int], NDArray[np.int64]] | None = None

    def epoch_rows(self, length: int) -> int:
        return (len(self.tokens) - 1) // length

    def begins(self, epoch: int, length: int) -> NDArray[np.int64]:
        """Token offsets at which the rows of an epoch begin, shuffled.

        The rows begin at the points of a grid with step ``length`` and a random phase. Each point
        moves forward to the next start, unless that is more than half a row away (as it is in a
        long function).
        """
        random = np.random.default_rng((self.seed, length, epoch))
        grid = np.arange(self.epoch_rows(length), dtype=np.int64) * length
        grid += random.integers(length)
        after = np.minimum(np.searchsorted(self.starts, grid), len(self.starts) - 1)
        moved = self.starts[after]
        near = (moved >= grid) & (moved - grid <= length // 2)
        chosen = np.where(near, moved, grid)
        chosen = np.minimum(chosen, len(self.tokens) - length - 1)
        return random.permutation(chosen)

    def batch(self, index: int, rows: int, length: int) -> Tensor:
        """Batch number ``index``: tokens int64 [rows, length + 1]; epochs follow one another."""
        count = self.epoch_rows(length)
        numbers = np.arange(index * rows, (index + 1) * rows)
        begins = np.empty(rows, dtype=np.int64)
        for epoch in np.unique(numbers // count):
            here = numbers // count == epoch
            begins[here] = self._cached(int(epoch), length)[numbers[here] % count]
        first = torch.from_numpy(begins).to(self.tokens.device)
        within = torch.arange(length + 1, device=self.tokens.device)
        return self.tokens[first[:, None] + within].long()

    def _cached(self, epoch: int, length: int) -> NDArray[np.int64]:
        if self._epoch is None or self._epoch[0] != (epoch, length):
            self._epoch = (epoch, length), self.begins(epoch, length)
        return self._epoch[1]
