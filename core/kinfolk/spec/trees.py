"""Trees of drafts: which of a drafter's candidates a step verifies.

L lanes, D tokens deep, K candidates for each token. A tree of n nodes has the rows 0 (the pending
token, the root) and 1..n. Every function returns tokens int64 [L, N], parents int64 [L, N] (the row
that each node follows, ``NO_ROW`` where there is none), and the number of nodes int64 [L]. Parents
come before their children, so the first n nodes of a tree are a tree.
"""

from __future__ import annotations

import torch

from kinfolk.draft_api import Proposals
from kinfolk.spec.verify import NO_ROW

Trees = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def chains(proposals: Proposals, nodes: int) -> Trees:
    """The first candidate of each token, ``nodes`` tokens deep. Raises :class:`ValueError` if the
    drafter states a tree of its own, or proposes fewer tokens."""
    lanes, depth, _ = proposals.tokens.shape
    if proposals.parents is not None:
        raise ValueError("the drafter proposes a tree and can draft no chain")
    if depth < nodes:
        raise ValueError(f"the drafter proposes {depth} tokens, a chain of {nodes} was asked for")
    tokens = proposals.tokens[:, :nodes, 0].contiguous()
    parents = torch.arange(nodes, device=tokens.device).expand(lanes, nodes).contiguous()
    return tokens, parents, torch.full_like(tokens[:, 0], nodes)


def best_first_trees(proposals: Proposals, nodes: int) -> Trees:
    """The ``nodes`` nodes whose paths have the largest sums of scores, in this order; of equal ones
    the less deep first, then the better candidate, then the one whose parent comes first.

    These trees have the largest expected number of kept rows, if the scores are right and do not
    depend on the path (DDTree, arXiv 2604.12989).
    """
    if proposals.parents is not None:
        return _stated_trees(proposals, nodes)
    scores = proposals.scores.float().nan_to_num(-torch.inf, neginf=-torch.inf).clamp_max(0)
    above = torch.zeros_like(scores[:, 0, :1])
    sums, tokens, parents = [], [], []
    first = 0
    for depth in range(scores.shape[1]):
        width = above.shape[1]
        offered = (scores[:, depth, :, None] + above[:, None, :]).flatten(1)
        order = _descending(offered)[:, :nodes]
        above = offered.gather(1, order)
        sums.append(above)
        tokens.append(proposals.tokens[:, depth].gather(1, order // width))
        # The parent's number among all candidates, those of the root having none.
        parents.append(order % width + first if depth else torch.full_like(order, -1))
        first += width if depth else 0
    total, token, parent = torch.cat(sums, 1), torch.cat(tokens, 1), torch.cat(parents, 1)
    order = _descending(total)
    rank = torch.empty_like(order).scatter_(
        1, order, torch.arange(order.shape[1], device=order.device).expand_as(order)
    )
    row = torch.where(parent < 0, 0, rank.gather(1, parent.clamp_min(0)) + 1)
    order = order[:, :nodes]
    there = total.gather(1, order) > -torch.inf
    return _padded(token.gather(1, order), row.gather(1, order), there, nodes)


def _stated_trees(proposals: Proposals, nodes: int) -> Trees:
    """The first ``nodes`` nodes of the trees that the drafter states."""
    tokens, scores = proposals.tokens.flatten(1)[:, :nodes], proposals.scores.flatten(1)[:, :nodes]
    assert proposals.parents is not None
    parents = proposals.parents[:, :nodes] + 1
    before = torch.arange(parents.shape[1], device=parents.device)
    there = (scores > -torch.inf) & (parents >= 0) & (parents <= before)
    return _padded(tokens, parents, there, nodes)


def _padded(tokens: torch.Tensor, parents: torch.Tensor, there: torch.Tensor, nodes: int) -> Trees:
    missing = (0, nodes - tokens.shape[1])
    pad = torch.nn.functional.pad
    return (
        pad(torch.where(there, tokens, 0), missing),
        pad(torch.where(there, parents, NO_ROW), missing, value=NO_ROW),
        there.sum(1),
    )


def _descending(scores: torch.Tensor) -> torch.Tensor:
    """The order of scores [L, n], the largest first, the first of equal ones first."""
    return torch.sort(scores, dim=1, descending=True, stable=True).indices
