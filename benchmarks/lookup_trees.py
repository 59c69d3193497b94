"""A drafter of trees that needs no weights: prompt look-up with several candidates.

Where ``kinfolk.spec.ngram`` continues the one occurrence that matches the end of the text best,
this one continues the best few. Continuations share their common beginning and are siblings where
they differ. Drafters of the host propose chains only, so this is one of the device: its state is
the text of each sequence, and it copies from that with tensor operations, as drafts are captured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch

from kinfolk.descriptors import DrafterSpec
from kinfolk.draft_api import DraftBlock, DraftPlan, Proposals, TargetFacts
from kinfolk.gguf.file import GGUFFile
from kinfolk.model_api import CommitBatch, Model, StateView, StepBatch
from kinfolk.nn.context import BuildContext
from kinfolk.plans import Recurrent, RecurrentTensor, WeightPlan
from kinfolk.spec.ngram import MAX_N, MIN_N
from kinfolk.types import DUMMY
from kinfolk.weights.loader import Weights

CANDIDATES: Final = 3
"""Occurrences that are continued."""

DEPTH: Final = MAX_N - 1
"""Most tokens of a continuation: as many as ``ngram`` drafts by default."""

NODES: Final = CANDIDATES * DEPTH

SPEC: Final = DrafterSpec(
    "lookup-trees", prepare=f"{__name__}:prepare", build=f"{__name__}:LookupTrees"
)

_TEXT: Final = "text"
_NOTHING: Final = -1


def prepare(file: GGUFFile, facts: TargetFacts) -> DraftPlan:
    """The plan for any target; float32 holds the number of every token."""
    return DraftPlan(
        WeightPlan(()),
        state=(Recurrent((RecurrentTensor(_TEXT, (facts.context,)),)),),
        depth=DEPTH,
        columns=CANDIDATES,
        own_trees=True,
        config=facts.first_layer,
    )


class LookupTrees:
    """The built drafter. A token of the text lies at its position, so those of rejected rows are
    overwritten and never read."""

    def __init__(
        self, plan: DraftPlan, weights: Weights, context: BuildContext, target: Model
    ) -> None:
        self.layer: int = plan.config

    def extend(
        self, features: torch.Tensor | None, batch: StepBatch, view: StateView
    ) -> Sequence[Any]:
        text = view.recurrent(self.layer)[_TEXT]
        slots = batch.slot_of_sequence[batch.sequence_of_row]
        tokens = batch.tokens.to(text.dtype)
        text[torch.where(batch.arena_row < 0, slots, DUMMY), batch.positions] = tokens
        wanted, rows = batch.store_rows >= 0, batch.store_rows.clamp_min(0)
        text[torch.where(wanted, batch.store_slots, DUMMY)] = text[slots[rows]]
        return batch.positions, tokens

    def commit(self, trace: Sequence[Any], kept: CommitBatch, view: StateView) -> None:
        positions, tokens = trace
        rows = kept.path.clamp_min(0)
        slots = torch.where(kept.path >= 0, kept.slot[:, None], DUMMY)
        view.recurrent(self.layer)[_TEXT][slots, positions[rows]] = tokens[rows]

    def draft(self, block: DraftBlock, view: StateView) -> Proposals:
        text = view.recurrent(self.layer)[_TEXT][block.slots].long()
        last = block.positions[:, None]
        return merged(continuations(text.scatter(1, last, block.tokens[:, None]), last))


def continuations(text: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
    """What follows the best earlier occurrences of the end of texts int64 [L, C], whose last tokens
    are at ``last`` int64 [L, 1]: int64 [L, K, D], padded with negative numbers.

    The best ones match the most tokens, and are the latest of those. Each is continued as far as it
    matches; one that reaches the end of the text is a loop, so it continues itself.
    """
    back = torch.arange(MAX_N, device=text.device)
    suffix = text.gather(1, (last - back).clamp_min(0)).where(last >= back, _NOTHING - 1)
    before = torch.nn.functional.pad(text, (MAX_N - 1, 0), value=_NOTHING).unfold(1, MAX_N, 1)
    sizes = (before.flip(2) == suffix[:, None]).long().cumprod(2).sum(2)
    context = text.shape[1]
    position = torch.arange(context, device=text.device)
    ranks = torch.where((sizes >= MIN_N) & (position < last), sizes * context + position, _NOTHING)
    best = ranks.topk(CANDIDATES, 1).values
    size, end = best[:, :, None] // context, best[:, :, None] % context
    step = torch.arange(DEPTH, device=text.device)
    source = end + 1 + step % (last[:, :, None] - end).clamp_min(1)
    found = text.gather(1, source.clamp_max(context - 1).flatten(1)).view_as(source)
    return torch.where((best[:, :, None] >= 0) & (step < size), found, _NOTHING)


def merged(found: torch.Tensor) -> Proposals:
    """The trees of continuations int64 [L, K, D]: of those that are equal up to a token, the first
    has that token. At each depth, candidates that are there come first."""
    there = found >= 0
    column = torch.arange(CANDIDATES, device=found.device)[:, None]
    told_apart = torch.where(there, found, _NOTHING - column)
    equal = (told_apart[:, :, None] == told_apart[:, None]).long().cumprod(3)
    first = equal.argmax(2)
    there &= first == column
    order = (~there).long().argsort(dim=1, stable=True)
    place = order.argsort(1).gather(1, first)
    above = torch.arange(DEPTH - 1, device=found.device) * CANDIDATES + place[:, :, :-1]
    parents = torch.nn.functional.pad(above, (1, 0), value=-1).gather(1, order)
    there = there.gather(1, order)
    tokens = torch.where(there, found.gather(1, order), 0)
    scores = torch.where(there, -math.log(CANDIDATES), -torch.inf)
    return Proposals(tokens.mT, scores.mT, parents.mT.flatten(1))
