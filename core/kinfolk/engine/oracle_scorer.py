"""Scores chunks by exact keys, to judge other scorers by (``--kvflash-policy oracle``)."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import torch

from kinfolk.engine.qk_scorer import QkScorer
from kinfolk.model_api import StateView
from kinfolk.state.operations import DigestChunk
from kinfolk_kernels.chunk_digest.op import KeyDigest
from kinfolk_kernels.codecs import numbers

NOT_SCORED = -1.0
"""The score of a chunk whose keys are not known, as op ``chunk_scores`` has it."""


class OracleScorer(QkScorer):
    """Beside what :class:`QkScorer` has, host memory for the keys of all places, in float32, which
    no plan counts: each step with a full chunk or with scores waits for the device. For tests and
    measurements."""

    def __init__(self, *arguments: Any, **sizes: Any) -> None:
        self._exact: dict[int, torch.Tensor] = {}
        super().__init__(*arguments, **sizes)

    def free(self) -> None:
        super().free()
        self._exact.clear()

    def compress(self, view: StateView, chunks: Sequence[DigestChunk]) -> None:
        """Copy the keys of full chunks, and compress them too."""
        super().compress(view, chunks)
        for chunk in chunks:
            block = itemgetter(chunk.block)
            keys = [numbers(view.paged(layer).pool("k"), block) for layer in self.layers]
            self._exact[chunk.place] = torch.stack(keys).float().cpu()

    def scores(
        self, queries: torch.Tensor, places: torch.Tensor, keys: KeyDigest | None = None
    ) -> torch.Tensor:
        """float32 [C], on the host: the largest share of attention of any row, layer and head, over
        all keys that are known; ``NOT_SCORED`` for other chunks."""
        known = [place in self._exact for place in places.tolist()]
        found = torch.full((len(known),), NOT_SCORED)
        if not any(known):
            return found
        kept = [self._exact[place] for place in places.tolist() if place in self._exact]
        best = torch.zeros(len(kept))
        for index in range(len(self.layers)):
            rows = queries[:, index].float().cpu()
            of_layer = torch.stack([each[index] for each in kept])
            of_layer = of_layer.repeat_interleave(rows.shape[1] // of_layer.shape[1], 1)
            products = torch.einsum("rhd,chnd->rhcn", rows, of_layer) * self.kind.scale
            shares = products.flatten(2).softmax(-1).view(products.shape).sum(-1)
            best = torch.maximum(best, shares.flatten(0, 1).amax(0))
        found[torch.tensor(known)] = best
        return found
