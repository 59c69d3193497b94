"""What a step verifies of a drafter's proposals: chains, trees of its own, or the best trees.

L lanes, D tokens deep, K candidates for each token. A tree of n nodes has the rows 0 (the pending
token, the root) and 1..n. Every function returns tokens int64 [L, N], parents int64 [L, N] (the row
that each node follows, ``NO_ROW`` where there is none), and the number of nodes int64 [L]. Parents
come before their children, so the first n nodes of a tree are a tree.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kinfolk.draft_api import Proposals
from kinfolk.spec.verify import NO_ROW

Trees = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

DraftTrees = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Trees]
"""The op ``draft_trees``, bound for N nodes."""


def chains(proposals: Proposals, nodes: int) -> Trees:
    """The first candidate of each token, ``nodes`` tokens deep. Raises :class:`ValueError` if the
    drafter states a tree of its own, or proposes fewer tokens."""
    lanes, depth, _ = proposals.tokens.shape
    if proposals.parents is not None:
        raise ValueError("the drafter proposes a tree and can draft no chain")
    if depth < nodes:
        raise ValueError(f"the drafter proposes {depth} tokens, a chain of {nodes} was asked for")
    tokens = proposals.tokens[:, :nodes, 0]
    parents = torch.arange(nodes, device=tokens.device).expand(lanes, nodes)
    return tokens, parents, torch.full_like(tokens[:, 0], nodes)


def trees(proposals: Proposals, nodes: int, draft_trees: DraftTrees) -> Trees:
    """The drafter's own trees up to ``nodes`` nodes, else the most probable ones of as many."""
    if proposals.parents is None:
        tokens, scores = proposals.tokens.contiguous(), proposals.scores.float().contiguous()
        return draft_trees(tokens, scores, torch.full_like(tokens[:, 0, 0], nodes))
    tokens = proposals.tokens.flatten(1)[:, :nodes]
    parents = proposals.parents[:, :nodes] + 1
    there = proposals.scores.flatten(1)[:, :nodes] > -torch.inf
    return (
        padded(tokens, nodes, 0),
        padded(torch.where(there, parents, NO_ROW), nodes, NO_ROW),
        torch.full_like(tokens[:, 0], tokens.shape[1]),
    )


def padded(rows: torch.Tensor, nodes: int, value: int) -> torch.Tensor:
    """Tokens or parents [L, N] with rows of a value behind them, ``nodes`` in all."""
    return torch.nn.functional.pad(rows, (0, nodes - rows.shape[1]), value=value)
