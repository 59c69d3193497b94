"""From the logits of a block to ranked proposals: every row by itself, or row after row."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from kinfolk.draft_api import DraftBlock, Proposals
from kinfolk.nn.context import BuildContext
from kinfolk.nn.linear import Linear
from kinfolk_kernels.embedding.op import EMBEDDING, EmbeddingArguments


class Ranking(Protocol):
    """Ranks the tokens of L lanes, D rows each."""

    def __call__(self, block: DraftBlock, logits: torch.Tensor, hidden: torch.Tensor) -> Proposals:
        """logits float32 [L, D, V'] over the rows of the head, hidden [L, D, width] that they were
        computed from -> K proposals for each row."""
        ...


class Independent:
    """The likeliest tokens of every row, whatever its neighbours propose.

    ``tokens`` int64 [V'] are the target's tokens by rows of a reduced head.
    """

    def __init__(self, columns: int, tokens: torch.Tensor | None) -> None:
        self.columns, self.tokens = columns, tokens

    def __call__(self, block: DraftBlock, logits: torch.Tensor, hidden: torch.Tensor) -> Proposals:
        best, rows = logits.topk(self.columns, -1)
        scores = best - logits.logsumexp(-1, keepdim=True)
        return Proposals(rows if self.tokens is None else self.tokens[rows], scores)


class CandidateSelector:
    """Row after row, the likeliest tokens given the one chosen before (DFlash 2).

    The score of a candidate is its logit plus the sum over r of predecessor[previous, r] *
    (hidden W^T)[r] * successor[candidate, r]. Only the ``top_k`` largest logits of a row are
    candidates; their scores are normalised among them.
    """

    def __init__(
        self,
        context: BuildContext,
        *,
        columns: int,
        top_k: int,
        tokens: torch.Tensor | None,
        predecessor: Any,
        successor: Any,
        hidden: Any,
        hidden_dtype: torch.dtype,
    ) -> None:
        self.columns, self.top_k, self.tokens = columns, top_k, tokens
        self.predecessor, self.successor = (
            context.ops.bind(EMBEDDING, EmbeddingArguments(table))
            for table in (predecessor, successor)
        )
        self.hidden = Linear(context, hidden, hidden_dtype)

    def __call__(self, block: DraftBlock, logits: torch.Tensor, hidden: torch.Tensor) -> Proposals:
        unary, rows = logits.topk(self.top_k, -1)
        candidates = rows if self.tokens is None else self.tokens[rows]
        successors = self.successor(candidates.flatten()).view(*candidates.shape, -1)
        projected = self.hidden(hidden.flatten(0, 1)).float().view(*hidden.shape[:2], -1)
        previous, tokens, scores = block.tokens, [], []
        for row in range(logits.shape[1]):
            pair = self.predecessor(previous) * projected[:, row]
            score = unary[:, row] + (successors[:, row] * pair[:, None]).sum(-1)
            best, order = score.log_softmax(-1).topk(self.columns, -1)
            tokens.append(candidates[:, row].gather(-1, order))
            scores.append(best)
            previous = tokens[-1][:, 0]
        return Proposals(torch.stack(tokens, 1), torch.stack(scores, 1))
