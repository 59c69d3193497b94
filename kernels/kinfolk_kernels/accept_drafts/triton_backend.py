"""``accept_drafts`` on the GPU, in one launch."""

from __future__ import annotations

import torch
import triton

from kinfolk_kernels.accept_drafts.kernel import accept_drafts_kernel
from kinfolk_kernels.accept_drafts.op import ACCEPT_DRAFTS, AcceptDraftsArguments
from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.verdict import YES, Verdict, no


def supports(arguments: AcceptDraftsArguments) -> Verdict:
    reason = refuses_device(accept_drafts_kernel, arguments.device)
    return no(reason) if reason else YES


def accept_drafts(
    arguments: AcceptDraftsArguments,
    chosen: torch.Tensor,
    tokens: torch.Tensor,
    parents: torch.Tensor,
    budget: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :class:`AcceptDraftsArguments`. For sequences of one row, which have no drafts, the
    reference is faster than a launch."""
    if tokens.shape[1] == 1:
        return ACCEPT_DRAFTS.reference(arguments, chosen, tokens, parents, budget)
    path, n_keep, following = (torch.empty_like(x) for x in (tokens, budget, budget))
    steps(chosen, tokens, parents, budget, path, n_keep, following).run()
    return path, n_keep, following


def steps(
    chosen: torch.Tensor,
    tokens: torch.Tensor,
    parents: torch.Tensor,
    budget: torch.Tensor,
    path: torch.Tensor,
    n_keep: torch.Tensor,
    following: torch.Tensor,
) -> Launch:
    """The launch that fills ``path`` [L, T], ``n_keep`` and ``following`` [L], all int64."""
    sequences, width = tokens.shape
    return Launch(
        accept_drafts_kernel,
        (sequences,),
        {
            "chosen_ptr": chosen,
            "tokens_ptr": tokens,
            "parents_ptr": parents,
            "budget_ptr": budget,
            "path_ptr": path,
            "n_keep_ptr": n_keep,
            "next_ptr": following,
        },
        {"WIDTH": width, "PLACES": triton.next_power_of_2(width)},
        warps=1,
    )
