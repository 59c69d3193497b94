"""The op ``sample``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from kinfolk_kernels.op import Op
from kinfolk_kernels.sample.philox import gumbel

CACHED = 16384
"""Tokens whose noise is made at once on a CPU: some arrays of 128 KB."""


@dataclass(frozen=True, slots=True)
class SampleArguments:
    """Samples tokens: temperature, then top-k, top-p and min-p, then a draw by Gumbel-max: the
    largest sum of scaled logit and Gumbel noise, of equals the lowest id. The noise of a token
    depends only on the token, the row's seed and its position.

    Operands: logits float32 [n, V], and the :class:`~kinfolk_kernels.sample.op.Parameters`
    of the n rows. Result: token ids int64 [n], and bool [n] whether all logits of a row are finite;
    where they are not, the token is undefined.
    """

    device: torch.device


class Parameters(Protocol):
    """The sampling parameters of n rows.

    ``temperature``, ``top_p``, ``min_p`` float32 [n], ``top_k``, ``seed``, ``position`` int64 [n].
    Temperature 0 takes the most probable token, top-k 0 and top-p 1 remove nothing. ``greedy``:
    every temperature is 0. ``largest_top_k``: an upper bound of top-k if every other row has one,
    else 0.
    """

    @property
    def greedy(self) -> bool: ...
    @property
    def largest_top_k(self) -> int: ...
    @property
    def temperature(self) -> torch.Tensor: ...
    @property
    def top_k(self) -> torch.Tensor: ...
    @property
    def top_p(self) -> torch.Tensor: ...
    @property
    def min_p(self) -> torch.Tensor: ...
    @property
    def seed(self) -> torch.Tensor: ...
    @property
    def position(self) -> torch.Tensor: ...


def sample(
    arguments: SampleArguments, logits: torch.Tensor, rows: Parameters
) -> tuple[torch.Tensor, torch.Tensor]:
    """See :class:`SampleArguments`.

    The largest of logits with independent Gumbel noise is a draw from their softmax (Gumbel, 1954;
    Maddison et al., "A* Sampling", 2014). Sums are float64. They are relative to the largest scaled
    logit, so that noise counts however large logits are.
    """
    finite = logits.isfinite().all(1)
    best = argmax(logits)
    if rows.greedy:
        return best, finite
    probabilities, tokens = candidates(logits, rows)
    scores = _scaled(logits, rows).gather(1, tokens).double()
    keys = scores - scores[:, :1] + _noise(tokens, rows)
    keys = torch.where(probabilities > 0, keys, -torch.inf)
    vocabulary = logits.shape[1]
    largest = torch.where(keys == keys.amax(1, keepdim=True), tokens, vocabulary)
    drawn = largest.amin(1).clamp_max(vocabulary - 1)
    return torch.where(rows.temperature == 0, best, drawn), finite


def _noise(tokens: torch.Tensor, rows: Parameters) -> torch.Tensor:
    """The noise of candidates [n, C], in parts whose words a CPU's cache holds."""
    size = CACHED if tokens.device.type == "cpu" else tokens.shape[1]
    parts = tokens.split(size, 1)
    return torch.cat([gumbel(rows.seed[:, None], rows.position[:, None], x) for x in parts], 1)


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """Index of the largest entry of each row, the lowest of equals."""
    vocabulary = logits.shape[1]
    index = torch.arange(vocabulary, device=logits.device)
    largest = logits.amax(1, keepdim=True)
    return torch.where(logits == largest, index, vocabulary).amin(1).clamp_max(vocabulary - 1)


def candidates(logits: torch.Tensor, rows: Parameters) -> tuple[torch.Tensor, torch.Tensor]:
    """Unnormalised probabilities in descending order, 0 for truncated candidates, and their ids.

    Temperature comes first, then top-k, then top-p of the rest (a token stays while the mass before
    it is below p), then min-p relative to the most probable token. Equal logits are in order of id.
    """
    scaled = _scaled(logits, rows)
    if 0 < rows.largest_top_k < logits.shape[1]:
        kept = _largest(scaled, rows.largest_top_k)
    else:
        kept = torch.arange(logits.shape[1], device=logits.device).expand_as(scaled)
    values, order = scaled.gather(1, kept).sort(dim=1, descending=True, stable=True)
    rank = torch.arange(values.shape[1], device=logits.device)
    limit = torch.where(rows.top_k == 0, values.shape[1], rows.top_k)[:, None]
    p = torch.where(rank < limit, values, -torch.inf).softmax(1)
    # In float64: float32 sums over a large vocabulary drift, and reach 1 before the end.
    before = p.cumsum(1, dtype=torch.float64) - p
    nucleus = (before < rows.top_p[:, None]) | (rows.top_p[:, None] == 1) | (rank == 0)
    p = torch.where(nucleus, p, 0)
    p = torch.where(p >= rows.min_p[:, None] * p[:, :1], p, 0)
    return p, kept.gather(1, order)


def _scaled(logits: torch.Tensor, rows: Parameters) -> torch.Tensor:
    return logits / torch.where(rows.temperature == 0, 1.0, rows.temperature)[:, None]


def _largest(values: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the ``count`` largest of each row, ascending. Of equals the lowest ids, which
    ``topk`` alone does not promise."""
    vocabulary = values.shape[1]
    least = values.topk(count, 1).values[:, -1:]
    above, tied = values > least, values == least
    room = count - above.sum(1, keepdim=True)
    chosen = above | (tied & (tied.cumsum(1) <= room))
    index = torch.arange(vocabulary, device=values.device)
    ids = torch.where(chosen, index, vocabulary).topk(count, 1, largest=False).values
    return ids.clamp_max(vocabulary - 1)  # rows with NaN have fewer than ``count``


SAMPLE = Op("sample", SampleArguments, sample, capturable=True)
