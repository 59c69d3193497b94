"""``draft_trees`` on the GPU, in one launch."""

from __future__ import annotations

import torch
import triton

from kinfolk_kernels.accept_drafts.op import NO_ROW
from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.draft_trees.kernel import draft_trees_kernel
from kinfolk_kernels.draft_trees.op import DraftTreesArguments
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.verdict import YES, Verdict, no


def supports(arguments: DraftTreesArguments) -> Verdict:
    reason = refuses_device(draft_trees_kernel, arguments.device)
    return no(reason) if reason else YES


def draft_trees(
    arguments: DraftTreesArguments,
    tokens: torch.Tensor,
    scores: torch.Tensor,
    budget: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :class:`DraftTreesArguments`."""
    shape = (scores.shape[0], arguments.nodes)
    trees, parents = (torch.empty(shape, dtype=torch.int64, device=tokens.device) for _ in range(2))
    counts = torch.empty_like(budget)
    build(arguments, tokens, scores, budget, trees, parents, counts).run()
    return trees, parents, counts


def build(
    arguments: DraftTreesArguments,
    tokens: torch.Tensor,
    scores: torch.Tensor,
    budget: torch.Tensor,
    trees: torch.Tensor,
    parents: torch.Tensor,
    counts: torch.Tensor,
) -> Launch:
    """The launch that fills ``trees`` and ``parents`` [L, N] and ``counts`` [L], all int64."""
    sequences, depths, candidates = scores.shape
    return Launch(
        draft_trees_kernel,
        (sequences,),
        {
            "tokens_ptr": tokens,
            "scores_ptr": scores,
            "budget_ptr": budget,
            "out_tokens_ptr": trees,
            "out_parents_ptr": parents,
            "counts_ptr": counts,
        },
        {
            "DEPTHS": depths,
            "CANDIDATES": candidates,
            "NODES": arguments.nodes,
            "PLACES": triton.next_power_of_2(arguments.nodes + 1),
            "NO_ROW": NO_ROW,
            "CHAIN_SEEDED": arguments.chain_seeded,
        },
        warps=1,
    )
