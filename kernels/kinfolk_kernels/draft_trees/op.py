"""The op ``draft_trees``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.accept_drafts.op import NO_ROW
from kinfolk_kernels.op import Op
from kinfolk_kernels.row_layout import MAX_DRAFT_ROWS


@dataclass(frozen=True, slots=True)
class DraftTreesArguments:
    """Builds the most probable trees of drafts from candidates that do not depend on the path, the
    best-first trees of DDTree (arXiv 2604.12989).

    Operands, for L sequences, contiguous: ``tokens`` int64 and ``scores`` float32 [L, D, K], K
    candidates at each of D depths with their log-probabilities, which do not rise from one
    candidate to the next; -inf and NaN = there is none. ``budget`` int64 [L], the most nodes of
    each tree. Results, N = ``nodes``: tokens and parents int64 [L, N], and the number of nodes [L].

    Node i is row i + 1 of its sequence, and row 0 is the pending token, the root. Parents are such
    rows, as ``accept_drafts`` takes them; padding has token 0 and parent ``NO_ROW``. Nodes stand in
    the order in which they were chosen, so a parent precedes its children, and the first n nodes
    are the tree of budget n. Each is the candidate whose path from the root has the largest sum of
    scores; of equal ones the less deep, then the candidate that comes first, then the one whose
    parent does. That makes the sum of the path probabilities, the expected number of accepted
    drafts, as large as it can be. ``chain_seeded``: the chain of first candidates comes first.

    Raises :class:`ValueError` if trees of N nodes have more rows than a path has bits.
    """

    nodes: int
    chain_seeded: bool
    device: torch.device

    def __post_init__(self) -> None:
        if not 0 < self.nodes < MAX_DRAFT_ROWS:
            raise ValueError(
                f"trees of {self.nodes} drafted tokens: 1 to {MAX_DRAFT_ROWS - 1} are possible, "
                f"since a path has {MAX_DRAFT_ROWS} bits and the root takes one"
            )


def draft_trees(
    arguments: DraftTreesArguments,
    tokens: torch.Tensor,
    scores: torch.Tensor,
    budget: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See :class:`DraftTreesArguments`.

    Each row offers one candidate, the first that is not yet its child; so every step chooses among
    as many offers as there are rows.
    """
    sequences, _, candidates = scores.shape
    row = torch.arange(arguments.nodes + 1, device=scores.device)
    parent = torch.where(row == 0, -1, NO_ROW).repeat(sequences, 1)
    total = torch.zeros(parent.shape, device=scores.device)
    depth, children, chosen = (torch.zeros_like(parent) for _ in range(3))
    for new in range(1, arguments.nodes + 1):
        offers = _offers(scores, total, depth, children, parent)
        wanted = offers == offers.max(1, keepdim=True).values
        if arguments.chain_seeded:
            # Only a chain has a row of its own number's depth.
            tip = (row == new - 1) & (depth == row) & (offers > -torch.inf)
            wanted = torch.where(tip.any(1, keepdim=True), tip, wanted)
        candidate = depth * candidates + children
        order = torch.where(wanted, candidate * len(row) + row, torch.iinfo(torch.int64).max)
        best = order.argmin(1, keepdim=True)
        grows = (offers.gather(1, best) > -torch.inf) & (budget[:, None] >= new)
        # Rows that are not there keep numbers that nothing reads.
        at = slice(new, new + 1)
        parent[:, at] = torch.where(grows, best, NO_ROW)
        total[:, at] = offers.gather(1, best)
        chosen[:, at] = candidate.gather(1, best)
        depth[:, at] = depth.gather(1, best) + 1
        children.scatter_add_(1, best, grows.long())
    parent, chosen = parent[:, 1:], chosen[:, 1:]
    there = parent != NO_ROW
    return (
        torch.where(there, tokens.flatten(1).gather(1, chosen), 0),
        parent.contiguous(),
        there.sum(1),
    )


def _offers(
    scores: torch.Tensor,
    total: torch.Tensor,
    depth: torch.Tensor,
    children: torch.Tensor,
    parent: torch.Tensor,
) -> torch.Tensor:
    """The sum of scores of the candidate that each row offers; -inf if it offers none."""
    _, depths, candidates = scores.shape
    left = (parent != NO_ROW) & (depth < depths) & (children < candidates)
    at = torch.where(left, depth * candidates + children, 0)
    offers = total + scores.flatten(1).gather(1, at)
    return torch.where(left & (offers > -torch.inf), offers, -torch.inf)


DRAFT_TREES = Op("draft_trees", DraftTreesArguments, draft_trees, capturable=True)
