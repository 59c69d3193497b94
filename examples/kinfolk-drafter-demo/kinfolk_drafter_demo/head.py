"""The drafter: a recurrent head on the last features of the model.

As in "Recurrent Drafter for Fast Speculative Decoding in Large Language Models" (Zhang et al.,
2024), a hidden row starts as the model's own, and every further token changes it a little:

    s_0 = feature of the last committed row
    s_{i+1} = s_i + out(silu(mix([s_i, norm(embedding of token i)])))

Token i + 1 is the likeliest by the model's own output matrix, applied to s_{i+1}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from kinfolk.draft_api import DraftBlock, DraftPlan, Proposals
from kinfolk.model_api import CommitBatch, Model, StateView, StepBatch
from kinfolk.nn.context import BuildContext
from kinfolk.nn.linear import Linear
from kinfolk.nn.norm import RMSNorm
from kinfolk.types import DUMMY
from kinfolk.weights.loader import Weights
from kinfolk_drafter_demo.file import MIX, OUT, STATE, TOKEN_NORM, HeadConfig


class RecurrentHead:
    """A built head. Its state is the feature of the last committed row of each sequence."""

    def __init__(
        self, plan: DraftPlan, weights: Weights, context: BuildContext, target: Model
    ) -> None:
        assert isinstance(plan.config, HeadConfig)
        self.layer, self.columns = plan.config.layer, plan.columns
        self.target, self.dtype = target, context.dtype
        mix: Any = weights[MIX]
        out: Any = weights[OUT]
        self.mix, self.out = Linear(context, mix), Linear(context, out)
        self.norm = RMSNorm(context, weights.tensor(TOKEN_NORM), plan.config.eps)
        nothing = torch.zeros(1, plan.config.width, device=context.device)
        self.normed_dtype = target.norm(nothing).dtype

    def extend(
        self, features: torch.Tensor | None, batch: StepBatch, view: StateView
    ) -> Sequence[Any]:
        """Keep the last row of every sequence without drafts, and rows that checkpoints ask for."""
        assert features is not None, "the plan asks for features"
        kept = view.recurrent(self.layer)[STATE]
        rows = features.to(kept.dtype)
        first, count, slot, drafted = batch.layout.spans.long().unbind(1)
        certain = (count > 0) & (drafted == 0)
        last = (first + count - 1).clamp_min(0)
        # Whatever is not to be kept goes to the slot of padding: no size depends on a value.
        kept[torch.where(certain, slot, DUMMY)] = rows[last]
        wanted = batch.store_rows >= 0
        kept[torch.where(wanted, batch.store_slots, DUMMY)] = rows[batch.store_rows.clamp_min(0)]
        return (rows,)

    def commit(self, trace: Sequence[Any], kept: CommitBatch, view: StateView) -> None:
        """Keep the last of the rows that were kept."""
        (rows,) = trace
        last = kept.path.gather(1, (kept.n_keep - 1).clamp_min(0)[:, None])[:, 0]
        slot = torch.where(kept.n_keep > 0, kept.slot, DUMMY)
        view.recurrent(self.layer)[STATE][slot] = rows[last.clamp_min(0)]

    def draft(self, block: DraftBlock, view: StateView) -> Proposals:
        state, token = view.recurrent(self.layer)[STATE][block.slots], block.tokens
        tokens, scores = [], []
        for _ in range(block.depth):
            state = self.step(state, token)
            logits = self.target.logits(state.to(self.normed_dtype))
            best = logits.float().log_softmax(1).topk(self.columns, 1)
            tokens.append(best.indices)
            scores.append(best.values)
            token = best.indices[:, 0]
        return Proposals(torch.stack(tokens, 1), torch.stack(scores, 1))

    def step(self, state: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        """The hidden rows [L, width] behind one more token [L] of each lane."""
        both = torch.cat([state.to(self.dtype), self.norm(self.target.embed(token).float())], 1)
        return state + self.out(torch.nn.functional.silu(self.mix(both))).float()
