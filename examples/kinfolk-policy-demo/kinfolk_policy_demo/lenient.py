"""Lenient verification: a draft is kept while each token is among the ``LIKELIEST`` ones."""

from __future__ import annotations

import torch

from kinfolk import hookimpl
from kinfolk.model_api import ModelInfo
from kinfolk.spec.sampling import sample
from kinfolk.spec.verify import accept_drafts
from kinfolk.verify_api import Draft, Kept, RowSampling, VerifyStep

LIKELIEST = 4


class Lenient:
    """Chooses the drafted token after a row if it is likely enough, else the sampled one."""

    @hookimpl
    def verify(self, step: VerifyStep, draft: Draft, sampling: RowSampling) -> Kept:
        rows = step.rows.clamp_min(0)
        chosen = sample(step.logits, sampling)[rows]
        likeliest = step.logits.topk(LIKELIEST, 1).indices[rows]
        parents = draft.parents.clamp_min(0)
        after = likeliest.gather(1, parents[..., None].expand(-1, -1, LIKELIEST))
        drafted = (draft.parents >= 0) & (after == draft.tokens[..., None]).any(2)
        # A row with several likely drafts chooses an arbitrary one of them.
        wanted = torch.where(drafted, draft.tokens, chosen.gather(1, parents))
        return accept_drafts(chosen.scatter(1, parents, wanted), draft)


def create(info: ModelInfo) -> Lenient:
    return Lenient()
