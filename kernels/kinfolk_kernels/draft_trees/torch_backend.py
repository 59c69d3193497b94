"""``draft_trees`` on the host, with a heap: the reference costs a dozen launches for each node."""

from __future__ import annotations

import heapq
import math

import numpy as np
import torch

from kinfolk_kernels.accept_drafts.op import NO_ROW
from kinfolk_kernels.draft_trees.op import DraftTreesArguments


def draft_trees(
    arguments: DraftTreesArguments,
    tokens: torch.Tensor,
    scores: torch.Tensor,
    budget: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :class:`DraftTreesArguments`."""
    nodes, device = arguments.nodes, scores.device
    trees, parents, counts = [], [], []
    every = zip(tokens.tolist(), scores.tolist(), budget.tolist(), strict=True)
    for of_depth, of_scores, most in every:
        found = _tree(of_scores, min(most, nodes), arguments.chain_seeded)
        rest = nodes - len(found)
        trees.append([of_depth[depth][rank] for _, depth, rank in found] + [0] * rest)
        parents.append([parent for parent, _, _ in found] + [NO_ROW] * rest)
        counts.append(len(found))
    return (
        torch.tensor(trees, dtype=torch.int64, device=device).view(-1, nodes),
        torch.tensor(parents, dtype=torch.int64, device=device).view(-1, nodes),
        torch.tensor(counts, dtype=torch.int64, device=device),
    )


def _tree(scores: list[list[float]], budget: int, chain_seeded: bool) -> list[tuple[int, int, int]]:
    """Parent, depth (0 = children of the root) and candidate of each node."""
    sums, heap = [0.0], list[tuple[float, int, int, int]]()
    found: list[tuple[int, int, int]] = []

    def sum_of(row: int, depth: int, rank: int) -> float:
        return float(np.float32(sums[row] + scores[depth][rank]))

    def offer(row: int, depth: int, rank: int) -> None:
        if depth < len(scores) and rank < len(scores[0]):
            total = sum_of(row, depth, rank)
            if total > -math.inf:
                heapq.heappush(heap, (-total, depth, rank, row))

    for depth in range(min(len(scores), budget) if chain_seeded else 0):
        total = sum_of(depth, depth, 0)
        if not total > -math.inf:
            break
        sums.append(total)
        found.append((depth, depth, 0))
        offer(depth, depth, 1)
    offer(len(found), len(found), 0)
    while heap and len(found) < budget:
        negative, depth, rank, row = heapq.heappop(heap)
        sums.append(-negative)
        found.append((row, depth, rank))
        offer(row, depth, rank + 1)
        offer(len(found), depth + 1, 0)
    return found
