"""Accepts drafts in one launch; see the reference."""

from __future__ import annotations

import torch
import triton

from kinfolk_kernels.accept_drafts import reference
from kinfolk_kernels.accept_drafts.kernel import accept_drafts_kernel
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.sections import out_of_reach
from kinfolk_kernels.verdict import YES, Verdict, no


def supports(
    chosen: torch.Tensor, tokens: torch.Tensor, parents: torch.Tensor, budget: torch.Tensor
) -> Verdict:
    """Whether ``accept_drafts`` can do this call."""
    given = (chosen, tokens, parents, budget)
    reason = out_of_reach(accept_drafts_kernel, *given)
    if reason:
        return no(reason)
    if not all(x.is_contiguous() and x.dtype == torch.int64 for x in given):
        return no("the lanes are not contiguous int64")
    return YES


def accept_drafts(
    chosen: torch.Tensor, tokens: torch.Tensor, parents: torch.Tensor, budget: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See the reference, which has nothing to look for where lanes are of one row."""
    if tokens.shape[1] == 1:
        return reference.accept_drafts(chosen, tokens, parents, budget)
    found = torch.empty_like(tokens), torch.empty_like(budget), torch.empty_like(budget)
    steps(chosen, tokens, parents, budget, *found).run()
    return found


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
    lanes, width = tokens.shape
    return Launch(
        accept_drafts_kernel,
        (lanes,),
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
