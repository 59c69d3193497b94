"""Proposals in the order in which the target's own draw prefers them.

The target draws the token with the largest log p + g, where the noise g of a token depends on the
seed, the position and the token alone (op ``sample``). A drafter that ranks by log q + g shares
that noise: its first proposal is itself a draw from q, and where q is near p nearly always the
draw from p. By log q alone, the first proposal is the drafter's most probable token, and is kept
with the chance that p gives to this one token. What is drawn is the same for both.

The chance that both draws agree is the sum over i of 1 / sum_j max(p_j / p_i, q_j / q_i), at least
(1 - d) / (1 + d) with d the total variation distance of p and q (Daliri et al., "Coupling without
Communication and Drafter-Invariant Speculative Decoding", 2024); rejection sampling has 1 - d.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.sample.philox import gumbel


@dataclass(frozen=True, slots=True)
class Ranked:
    """Proposals [.., K], the best first: ids int64, log-probabilities as they were given, and keys
    float64 by which they are ordered."""

    tokens: torch.Tensor
    log_q: torch.Tensor
    keys: torch.Tensor


def ranked(
    log_q: torch.Tensor,
    tokens: torch.Tensor,
    seed: torch.Tensor,
    position: torch.Tensor,
    temperature: torch.Tensor,
) -> Ranked:
    """Order proposals by log q / temperature + noise, the lowest id first of equals.

    ``log_q`` [.., K], the drafter's log-probabilities at temperature 1 up to a constant of each
    row, -inf = excluded; ``tokens`` int64 [.., K], distinct in a row. ``seed`` and ``position``
    int64 [..] are those with which the target draws the proposed token, ``temperature`` float [..]
    too: where it is 0, log q alone decides. Reads nothing on the host.
    """
    warm = temperature[..., None] > 0
    divisor = torch.where(warm, temperature[..., None], 1).double()
    noise = gumbel(seed[..., None], position[..., None], tokens)
    keys = log_q.double() / divisor + torch.where(warm, noise, 0)
    by_id = tokens.argsort(-1)
    place = keys.gather(-1, by_id).argsort(dim=-1, descending=True, stable=True)
    order = by_id.gather(-1, place)
    return Ranked(tokens.gather(-1, order), log_q.gather(-1, order), keys.gather(-1, order))
