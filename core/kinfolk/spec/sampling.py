"""From logits to tokens: penalties, bias, truncation, and a draw that only its row decides.

n rows of logits [n, V]. A row's draw depends on its logits, its parameters, its seed and its
position, so neither the batch nor speculation changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch

from kinfolk.sched.request import Sampling
from kinfolk.state.transfer import Transfer
from kinfolk_kernels.sample import reference
from kinfolk_kernels.sample.reference import Parameters

Draw = Callable[[torch.Tensor, Parameters], tuple[torch.Tensor, torch.Tensor]]
"""The op ``sample``."""

COLDEST = 1e-30
"""Least temperature to divide by: below it the quotients of usual logits overflow float32."""

CANDIDATES = (64, 1024)
"""Numbers of tokens that are sorted where every row has a top-k."""

PARAMETERS = {
    "temperature": "float32",
    "top_k": "int64",
    "top_p": "float32",
    "min_p": "float32",
    "seed": "int64",
    "position": "int64",
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
    """Parameters of n rows, as tensors on the device of the logits, and the op that draws."""

    greedy: bool
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    position: torch.Tensor
    largest_top_k: int
    edits: _Edits | None
    draw: Draw

    @classmethod
    def of(
        cls, rows: Sequence[RowContext], device: torch.device, draw: Draw = reference.sample
    ) -> RowSampling:
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
        kind = kind_of([row.sampling for row in rows])
        return cls.over(transfer.device, kind, edits, draw)

    @classmethod
    def over(
        cls,
        arrays: Mapping[str, torch.Tensor],
        kind: SamplingKind,
        edits: _Edits | None = None,
        draw: Draw = reference.sample,
    ) -> RowSampling:
        """Over arrays that are there already, named as in ``PARAMETERS``."""
        return cls(
            greedy=kind.greedy,
            temperature=arrays["temperature"],
            top_k=arrays["top_k"],
            top_p=arrays["top_p"],
            min_p=arrays["min_p"],
            seed=arrays["seed"],
            position=arrays["position"],
            largest_top_k=kind.largest_top_k,
            edits=edits,
            draw=draw,
        )


GREEDY = SamplingKind(greedy=True, largest_top_k=0)


def kind_of(samplings: Sequence[Sampling]) -> SamplingKind:
    """What rows that are sampled so have in common."""
    sampled = [each for each in samplings if not each.greedy]
    if not sampled:
        return GREEDY
    limited = all(each.top_k > 0 for each in sampled)
    largest = max(each.top_k for each in sampled) if limited else 0
    # Rounded up to one of few sizes; 0 = all of them have to be sorted.
    size = next((size for size in CANDIDATES if 0 < largest <= size), 0)
    return SamplingKind(greedy=False, largest_top_k=size)


def fill_parameters(arrays: Mapping[str, npt.NDArray[Any]], rows: Sequence[RowContext]) -> None:
    """Write the parameters of n rows to the first n places of host arrays."""
    for name in ("top_k", "top_p", "min_p"):
        arrays[name][: len(rows)] = [getattr(row.sampling, name) for row in rows]
    arrays["temperature"][: len(rows)] = [
        row.sampling.temperature and max(row.sampling.temperature, COLDEST) for row in rows
    ]
    arrays["position"][: len(rows)] = [row.position for row in rows]
    arrays["seed"][: len(rows)] = [_signed(row.sampling.seed) for row in rows]


def _signed(seed: int) -> int:
    """The low 64 bits of a seed, as int64 holds them."""
    return (seed + 2**63) % 2**64 - 2**63


def sample(logits: torch.Tensor, rows: RowSampling) -> torch.Tensor:
    """float32 [n, V] -> token ids int64 [n]; some token where a row's logits are not finite."""
    return sample_checked(logits, rows)[0]


def sample_checked(
    logits: torch.Tensor, rows: RowSampling
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The tokens, and bool [n] whether a row's logits are finite. That is found out on the way,
    unless logits are changed first."""
    if rows.edits is not None:
        return rows.draw(_edited(logits, rows.edits), rows)[0], None
    return rows.draw(logits, rows)


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
