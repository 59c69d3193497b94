"""From the logits of a block to ranked proposals: every row by itself, or row after row."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from kinfolk.draft_api import DraftBlock, Proposals
from kinfolk.nn.context import BuildContext
from kinfolk.nn.linear import Linear
from kinfolk.spec.candidates import best_candidates, best_of_logits
from kinfolk_kernels.embedding.op import EMBEDDING, EmbeddingArguments


class Ranking(Protocol):
    """Ranks the tokens of L lanes, D rows each."""

    def __call__(self, block: DraftBlock, logits: torch.Tensor, hidden: torch.Tensor) -> Proposals:
        """logits float32 [L, D, V'] over the rows of the head, hidden [L, D, width] that they were
        computed from -> K proposals for each row."""
        ...


class Independent:
    """The best tokens of every row, whatever its neighbours propose.

    ``tokens`` int64 [V'] are the target's tokens by rows of a reduced head.
    """

    def __init__(self, columns: int, tokens: torch.Tensor | None) -> None:
        self.columns, self.tokens = columns, tokens

    def __call__(self, block: DraftBlock, logits: torch.Tensor, hidden: torch.Tensor) -> Proposals:
        depth = torch.arange(1, logits.shape[1] + 1, device=logits.device)
        position = block.positions[:, None] + depth
        seed = block.seed[:, None].expand_as(position)
        temperature = block.temperature[:, None].expand_as(position)
        chosen = best_of_logits(logits, self.tokens, seed, position, temperature, self.columns)
        return Proposals(*chosen)


class CandidateSelector:
    """Row after row, the best tokens given the one chosen before (DFlash 2).

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
            best, chance = best_candidates(
                score.log_softmax(-1),
                candidates[:, row],
                block.seed,
                block.positions + row + 1,
                block.temperature,
                self.columns,
            )
            tokens.append(best)
            scores.append(chance)
            previous = best[:, 0]
        return Proposals(torch.stack(tokens, 1), torch.stack(scores, 1))
