"""From logits to tokens: penalties, bias, truncation, and a draw that only its row decides.

n rows of logits [n, V]. A row's draw depends on its logits, its parameters and its uniform number,
so neither the batch nor speculation changes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kinfolk.sched.request import Sampling
from kinfolk.spec.philox import uniforms

COLDEST = 1e-30
"""Least temperature to divide by: below it the quotients of usual logits overflow float32."""


@dataclass(frozen=True, slots=True)
class RowContext:
    """What sampling one row needs to know.

    ``position`` is that of the token to be chosen. ``prompt`` holds the ids of the prompt,
    ``output`` counts those emitted or drafted before this row; both are read only if the row's
    sampling has penalties.
    """

    sampling: Sampling
    position: int
    prompt: frozenset[int] = frozenset()
    output: Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True)
class _Edits:
    """Sparse changes of logits: entries (row, token) with the factors that apply to them."""

    row: torch.Tensor
    token: torch.Tensor
    repetition: torch.Tensor
    subtract: torch.Tensor


@dataclass(frozen=True, slots=True)
class RowSampling:
    """Parameters of n rows, as tensors on the device of the logits."""

    greedy: bool
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    uniform: torch.Tensor
    largest_top_k: int
    edits: _Edits | None

    @classmethod
    def of(cls, rows: Sequence[RowContext], device: torch.device) -> RowSampling:
        params = [row.sampling for row in rows]

        def tensor(values: object, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        sampled = [p for p in params if not p.greedy]
        limited = all(p.top_k > 0 for p in sampled)
        seeds = np.array([p.seed % 2**64 for p in params], np.uint64)
        return cls(
            greedy=not sampled,
            temperature=tensor([p.temperature and max(p.temperature, COLDEST) for p in params]),
            top_k=tensor([p.top_k for p in params], torch.int64),
            top_p=tensor([p.top_p for p in params]),
            min_p=tensor([p.min_p for p in params]),
            uniform=tensor(uniforms(seeds, [row.position for row in rows]), torch.float64),
            largest_top_k=max((p.top_k for p in sampled), default=0) if limited else 0,
            edits=_edits(rows, device),
        )


def sample(logits: torch.Tensor, rows: RowSampling) -> torch.Tensor:
    """float32 [n, V] -> token ids int64 [n]; some token where a row's logits are not finite."""
    if rows.edits is not None:
        logits = _edited(logits, rows.edits)
    best = argmax(logits)
    if rows.greedy:
        return best
    probabilities, tokens = candidates(logits, rows)
    cumulative = probabilities.double().cumsum(1)
    threshold = rows.uniform[:, None] * cumulative[:, -1:]
    # The first candidate whose cumulative mass exceeds the threshold; rounding may leave none.
    place = (cumulative <= threshold).sum(1).clamp_max(probabilities.shape[1] - 1)
    place = torch.minimum(place, (probabilities > 0).sum(1) - 1).clamp_min(0)
    drawn = tokens.gather(1, place[:, None])[:, 0]
    return torch.where(rows.temperature == 0, best, drawn)


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """Index of the largest entry of each row, the lowest of equals."""
    vocabulary = logits.shape[1]
    index = torch.arange(vocabulary, device=logits.device)
    largest = logits.amax(1, keepdim=True)
    return torch.where(logits == largest, index, vocabulary).amin(1).clamp_max(vocabulary - 1)


def candidates(logits: torch.Tensor, rows: RowSampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Unnormalised probabilities in descending order, 0 for what truncation removed, and their ids.

    Temperature first, then top-k, then top-p over what that leaves (a token stays while the mass
    before it is below p), then min-p relative to the most probable one. Equal logits are in order
    of id.
    """
    scaled = logits / torch.where(rows.temperature == 0, 1.0, rows.temperature)[:, None]
    if 0 < rows.largest_top_k < logits.shape[1]:
        kept = _largest(scaled, rows.largest_top_k)
    else:
        kept = torch.arange(logits.shape[1], device=logits.device).expand_as(scaled)
    values, order = scaled.gather(1, kept).sort(dim=1, descending=True, stable=True)
    rank = torch.arange(values.shape[1], device=logits.device)
    limit = torch.where(rows.top_k == 0, values.shape[1], rows.top_k)[:, None]
    p = torch.where(rank < limit, values, -torch.inf).softmax(1)
    # In float64: over a large vocabulary float32 sums drift, and reach 1 before the end.
    before = p.cumsum(1, dtype=torch.float64) - p
    nucleus = (before < rows.top_p[:, None]) | (rows.top_p[:, None] == 1) | (rank == 0)
    p = torch.where(nucleus, p, 0)
    p = torch.where(p >= rows.min_p[:, None] * p[:, :1], p, 0)
    return p, kept.gather(1, order)


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
    return ids.clamp_max(vocabulary - 1)  # of NaN there are too few


def _edited(logits: torch.Tensor, edits: _Edits) -> torch.Tensor:
    changed = logits.clone()
    value = logits[edits.row, edits.token]
    value = torch.where(value > 0, value / edits.repetition, value * edits.repetition)
    changed[edits.row, edits.token] = value - edits.subtract
    return changed


def _edits(rows: Sequence[RowContext], device: torch.device) -> _Edits | None:
    found: list[tuple[int, int, float, float]] = []
    for index, row in enumerate(rows):
        params = row.sampling
        bias = dict(params.logit_bias)
        output = row.output or {}
        touched = set(bias)
        if params.has_penalties:
            touched |= row.prompt | output.keys()
        for token in touched:
            count = output.get(token, 0) if params.has_penalties else 0
            seen = params.has_penalties and (count > 0 or token in row.prompt)
            penalty = params.frequency_penalty * count + params.presence_penalty * (count > 0)
            found.append(
                (
                    index,
                    token,
                    params.repetition_penalty if seen else 1.0,
                    penalty - bias.get(token, 0.0),
                )
            )
    if not found:
        return None
    row_of, token_of, repetition, subtract = zip(*found, strict=True)
    return _Edits(
        torch.tensor(row_of, device=device),
        torch.tensor(token_of, device=device),
        torch.tensor(repetition, device=device),
        torch.tensor(subtract, device=device),
    )
