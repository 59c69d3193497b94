"""Verification: which drafted rows are kept.

Every row is sampled as if nothing had been drafted; a drafted token is kept when it equals what
its parent's row chose. So the output is a draw from the model's own distribution with any drafts,
and the same draw as without them, because the noise of a row's tokens depends on its seed and
position alone. A drafter that ranks its proposals with that noise (:mod:`kinfolk.spec.gumbel`) is
kept more often, and changes no draw either.

L sampled sequences of at most T rows; a plain decode step has T = 1.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import torch

from kinfolk.hookspecs import hookimpl
from kinfolk.spec.sampling import sample_checked
from kinfolk.verify_api import AcceptDrafts, Draft, Kept, RowSampling, VerifyStep
from kinfolk_kernels.accept_drafts.op import ACCEPT_DRAFTS, AcceptDraftsArguments
from kinfolk_kernels.accept_drafts.op import NO_ROW as NO_ROW

REFERENCE_ACCEPT_DRAFTS: Final[AcceptDrafts] = partial(
    ACCEPT_DRAFTS.reference, AcceptDraftsArguments(torch.device("cpu"))
)
"""The reference, which runs on any device."""


def verify(step: VerifyStep, draft: Draft, sampling: RowSampling) -> Kept:
    """Sample every row; keep the rows of each sequence from its root while tokens are equal."""
    tokens, finite = sample_checked(step.logits, sampling)
    return replace(accept_drafts(tokens[step.rows.clamp_min(0)], draft), finite=finite)


def accept_drafts(chosen: torch.Tensor, draft: Draft) -> Kept:
    """Keep drafted rows that equal ``chosen`` int64 [L, T], the token sampled after each row."""
    return Kept(*draft.accept_drafts(chosen, draft.tokens, draft.parents, draft.budget))


class DefaultVerify:
    """The core's implementation of the hook ``verify``."""

    @hookimpl
    def verify(self, step: VerifyStep, draft: Draft, sampling: RowSampling) -> Kept:
        return verify(step, draft, sampling)
