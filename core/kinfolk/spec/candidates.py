"""The best candidates of a row, from a drafter's logits.

For sampled requests, candidates are ranked by the noise with which the target draws, see
:mod:`kinfolk.spec.gumbel`. Their scores are then the chances to be drawn if the target's
log-probabilities are the drafter's plus Gumbel noise: the largest of key + noise is a draw from the
softmax of the keys.
"""

from __future__ import annotations

from typing import Final

import torch

from kinfolk.spec.gumbel import ranked

MOST_RANKED: Final = 64
"""Tokens of a row that are ranked: the noise seldom lifts others to the first places."""


def best_of_logits(
    logits: torch.Tensor,
    tokens: torch.Tensor | None,
    seed: torch.Tensor,
    position: torch.Tensor,
    temperature: torch.Tensor,
    columns: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first ``columns`` tokens of rows of logits float32 [..., V'], and their scores float32.

    ``tokens`` int64 are the target's tokens by rows of a reduced head, [V'] for all rows alike or
    [..., V'] row by row; ``None`` = the same.
    ``seed``, ``position`` and ``temperature`` [...] are of the proposed token.
    """
    best, rows = logits.topk(min(MOST_RANKED, logits.shape[-1]), -1)
    log_q = best - logits.logsumexp(-1, keepdim=True)
    if tokens is None:
        candidates = rows
    else:
        candidates = tokens[rows] if tokens.ndim == 1 else tokens.gather(-1, rows)
    return best_candidates(log_q, candidates, seed, position, temperature, columns)


def best_candidates(
    log_q: torch.Tensor,
    candidates: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
    temperature: torch.Tensor,
    columns: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first ``columns`` of ranked candidates [..., K], and their scores float32.

    ``position`` [...] is that of the proposed token.
    """
    order = ranked(log_q, candidates, seed, position, temperature)
    warm = order.keys.log_softmax(-1)
    scores = torch.where(temperature[..., None] > 0, warm, order.log_q.double())
    return order.tokens[..., :columns].contiguous(), scores[..., :columns].float()
