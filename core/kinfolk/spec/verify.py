"""Which drafted rows are kept.

Every row is sampled as if nothing had been drafted; a drafted token is kept when it equals what
its parent's row chose. So the output is a draw from the model's own distribution with any drafts,
and the same draw as without them, because a row's random number depends on its position alone.

L lanes, one a sampled sequence, of at most T rows; a plain decode step has T = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch

from kinfolk.hookspecs import hookimpl
from kinfolk.spec.sampling import RowSampling, sample_checked
from kinfolk_kernels.accept_drafts.op import ACCEPT_DRAFTS, AcceptDraftsArguments
from kinfolk_kernels.accept_drafts.reference import NO_ROW as NO_ROW

AcceptDrafts = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    tuple[torch.Tensor, torch.Tensor, torch.Tensor],
]
"""The op ``accept_drafts``, bound."""

REFERENCE_ACCEPT_DRAFTS: Final[AcceptDrafts] = partial(
    ACCEPT_DRAFTS.reference, AcceptDraftsArguments(torch.device("cpu"))
)
"""The reference, which runs on any device."""


@dataclass(frozen=True, slots=True)
class VerifyStep:
    """logits float32 [n, V]; rows int64 [L, T]: the logits of each row of a lane, -1 = padding."""

    logits: torch.Tensor
    rows: torch.Tensor


@dataclass(frozen=True, slots=True)
class Draft:
    """tokens int64 [L, T]: the pending token, then drafts; parents int64 [L, T]: index in the lane
    of each row's predecessor, -1 for the first, -2 for padding; budget int64 [L]: most rows that
    may be kept; and the op that accepts drafts."""

    tokens: torch.Tensor
    parents: torch.Tensor
    budget: torch.Tensor
    accept_drafts: AcceptDrafts = REFERENCE_ACCEPT_DRAFTS


@dataclass(frozen=True, slots=True)
class Kept:
    """path int64 [L, T]: kept rows of each lane in order, padded with -1; n_keep int64 [L], at
    least 1; next int64 [L]: the token chosen at the last kept row. A lane emits the tokens of
    path[1:] and then ``next``. ``finite`` bool [n]: whether each row of logits is, if whoever
    answers has found out."""

    path: torch.Tensor
    n_keep: torch.Tensor
    next: torch.Tensor
    finite: torch.Tensor | None = None


def verify(step: VerifyStep, draft: Draft, sampling: RowSampling) -> Kept:
    """Sample every row, and keep each lane from its root along equal tokens."""
    tokens, finite = sample_checked(step.logits, sampling)
    return replace(accept_drafts(tokens[step.rows.clamp_min(0)], draft), finite=finite)


def accept_drafts(chosen: torch.Tensor, draft: Draft) -> Kept:
    """chosen int64 [L, T]: the token that each row wants next."""
    return Kept(*draft.accept_drafts(chosen, draft.tokens, draft.parents, draft.budget))


class DefaultVerify:
    """The core's answer to the hook ``verify``."""

    @hookimpl
    def verify(self, step: VerifyStep, draft: Draft, sampling: RowSampling) -> Kept:
        return verify(step, draft, sampling)
