"""Scores by rare tokens: a chunk is worth those that it shares with the end of the text.

A token that is in few chunks says more than one that is everywhere: in n of C chunks, it counts
log(C / n). Nothing is computed on the device, so nothing there is waited for.
"""

from __future__ import annotations

import torch

from kinfolk import hookimpl
from kinfolk.model_api import ModelInfo
from kinfolk.score_api import KEEP, ChunkQuery, Keep, Scores
from kinfolk.types import CHUNK_POSITIONS

LAST = 64
"""Tokens at the end of the text that are looked for."""


class RareTokens:
    """One object for each loaded model. It remembers nothing: a score depends on the text alone."""

    @hookimpl
    def score_chunks(self, query: ChunkQuery) -> Scores | Keep:
        wanted = torch.tensor(sorted(set(query.tokens[-LAST:])))
        sealed = torch.tensor(query.tokens[: query.chunks * CHUNK_POSITIONS])
        rows = sealed.view(query.chunks, CHUNK_POSITIONS)
        found = torch.stack([(rows == token).any(1) for token in wanted], 1)
        if not found.any():
            return KEEP
        rarity = torch.log(query.chunks / found.sum(0).clamp_min(1))
        return Scores(found.float() @ rarity)


def create(info: ModelInfo) -> RareTokens:
    return RareTokens()
