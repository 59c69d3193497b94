"""From logits to tokens: penalties, bias, truncation, and a draw that only its row decides.

n rows of logits [n, V]. A row's draw depends on its logits, its parameters and its uniform number,
so neither the batch nor speculation changes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kinfolk.sched.request import Sampling
from kinfolk.spec.philox import uniforms
from kinfolk.state.transfer import Transfer

COLDEST = 1e-30
"""Least temperature to divide by: below it the quotients of usual logits overflow float32."""

CANDIDATES = (64, 1024)
"""Numbers of tokens that are sorted where every row has a top-k."""

DRAWS = 64
"""Random numbers of a request that are computed at once."""

PARAMETERS = {
    "temperature": "float32",
    "top_k": "int64",
    "top_p": "float32",
    "min_p": "float32",
    "uniform": "float64",
}
"""Arrays of n rows, by name, and their types."""

_EDITS = {"row": "int64", "token": "int64", "repetition": "float32", "subtract": "float32"}


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
class SamplingKind:
    """What decides which kernels sample: whether every row is greedy, and how many tokens are
    sorted (0 = all)."""

    greedy: bool
    largest_top_k: int


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
        """In an upload of their own."""
        entries = _edits(rows)
        count, changed = (len(rows),), (len(entries),)
        transfer = Transfer(
            {
                **{name: (kind, count) for name, kind in PARAMETERS.items()},
                **{name: (kind, changed) for name, kind in _EDITS.items()},
            },
            device,
        )
        fill_parameters(transfer.host, rows)
        for name, values in zip(_EDITS, zip(*entries, strict=True), strict=False):
            transfer.host[name][:] = values
        transfer.upload()
        edits = _Edits(*(transfer.device[name] for name in _EDITS)) if entries else None
        return cls.over(transfer.device, kind_of(rows), edits)

    @classmethod
    def over(
        cls, arrays: Mapping[str, torch.Tensor], kind: SamplingKind, edits: _Edits | None = None
    ) -> RowSampling:
        """Over arrays that are there already, named as in ``PARAMETERS``."""
        return cls(
            greedy=kind.greedy,
            temperature=arrays["temperature"],
            top_k=arrays["top_k"],
            top_p=arrays["top_p"],
            min_p=arrays["min_p"],
            uniform=arrays["uniform"],
            largest_top_k=kind.largest_top_k,
            edits=edits,
        )


def kind_of(rows: Sequence[RowContext]) -> SamplingKind:
    """What the rows have in common."""
    params = {row.sampling for row in rows}
    sampled = [p for p in params if not p.greedy]
    limited = bool(sampled) and all(p.top_k > 0 for p in sampled)
    largest = max(p.top_k for p in sampled) if limited else 0
    # Rounded up to one of few sizes; 0 = all of them have to be sorted.
    size = next((size for size in CANDIDATES if 0 < largest <= size), 0)
    return SamplingKind(not sampled, size)


def is_edited(rows: Sequence[RowContext]) -> bool:
    """Whether any row's logits are changed before sampling."""
    return any(row.sampling.has_penalties or row.sampling.logit_bias for row in rows)


def fill_parameters(arrays: Mapping[str, npt.NDArray[Any]], rows: Sequence[RowContext]) -> None:
    """Write the parameters of n rows to the first n places of host arrays."""
    for name in ("top_k", "top_p", "min_p"):
        arrays[name][: len(rows)] = [getattr(row.sampling, name) for row in rows]
    arrays["temperature"][: len(rows)] = [
        row.sampling.temperature and max(row.sampling.temperature, COLDEST) for row in rows
    ]
    arrays["uniform"][: len(rows)] = [
        0.0 if row.sampling.greedy else draw(row.sampling.seed % 2**64, row.position)
        for row in rows
    ]


def draw(seed: int, position: int) -> float:
    """The random number of a position; a whole run of them is computed at once."""
    return float(_run_of_draws(seed, position // DRAWS)[position % DRAWS])


@lru_cache(maxsize=1024)
def _run_of_draws(seed: int, run: int) -> npt.NDArray[np.float64]:
    positions = np.arange(run * DRAWS, (run + 1) * DRAWS, dtype=np.uint64)
    return uniforms(np.full(DRAWS, seed, np.uint64), positions)


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


def _edits(rows: Sequence[RowContext]) -> list[tuple[int, int, float, float]]:
    """Entries of :class:`_Edits`."""
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
    return found
