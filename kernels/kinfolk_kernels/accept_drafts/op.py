"""The op ``accept_drafts``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.accept_drafts.reference import accept_drafts
from kinfolk_kernels.op import Op


@dataclass(frozen=True, slots=True)
class AcceptDraftsArguments:
    """Finds the path through drafts on which every token is the choice of the row before it.

    Operands, for L sequences of at most T rows, contiguous int64: ``chosen`` [L, T], the token that
    each row chose; ``tokens`` [L, T], the pending token and then drafts; ``parents`` [L, T], index
    in the sequence of each row's predecessor, -1 for the first and ``NO_ROW`` for padding;
    ``budget`` [L]. From the first row the path goes to the first child that has the chosen token,
    up to ``budget`` rows but at least one. Results: path [L, T], padded with -1; its length [L];
    the token that its last row chose [L].
    """

    device: torch.device


ACCEPT_DRAFTS = Op("accept_drafts", AcceptDraftsArguments, accept_drafts, capturable=True)
