"""Sampling parameters of rows for tests of a policy, with penalties that the host counts.

The engine counts on the device (:mod:`kinfolk.spec.penalties`); this is its reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kinfolk.sched.request import Sampling
from kinfolk.spec.sampling import (
    PARAMETER_ROW,
    REFERENCE_DRAW,
    edited,
    kind_of,
    uploaded_sampling,
    write_parameters,
)
from kinfolk.verify_api import Draw, RowSampling


@dataclass(frozen=True, slots=True)
class RowContext:
    """Sampling parameters and history of one row.

    ``position`` is that of the token to be chosen. ``prompt`` holds the ids of the prompt,
    ``output`` counts those emitted or drafted before this row.
    """

    sampling: Sampling
    position: int
    prompt: frozenset[int] = frozenset()
    output: Mapping[int, int] | None = None


def row_sampling(
    rows: Sequence[RowContext], device: torch.device, draw: Draw = REFERENCE_DRAW
) -> RowSampling:
    """The parameters of ``rows``, and their penalties and bias."""
    parameters = np.empty(len(rows), PARAMETER_ROW)
    for index, row in enumerate(rows):
        write_parameters(parameters[index : index + 1], row.sampling, [row.position])
    kind = kind_of([row.sampling for row in rows])
    edits = HostEdits(rows) if kind.edited else None
    return uploaded_sampling(parameters, kind, edits, device, draw)


class HostEdits:
    """Penalties and bias of rows, applied token by token."""

    def __init__(self, rows: Sequence[RowContext]) -> None:
        self.rows = tuple(rows)

    def apply(self, logits: torch.Tensor, rows: RowSampling) -> torch.Tensor:
        """The changed logits float32 [n, V], a copy."""
        changed = logits.clone()
        for index, row in enumerate(self.rows):
            touched, seen, counts, bias = _touched(row)
            changed[index, touched] = edited(
                logits[index, touched],
                seen.to(logits.device),
                counts.to(logits.device),
                bias.to(logits.device),
                rows.repetition[index],
                rows.presence[index],
                rows.frequency[index],
            )
        return changed

    def note(self, emitted: torch.Tensor) -> None:
        """The test counts tokens itself."""


def _touched(row: RowContext) -> tuple[list[int], torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids whose logits change; whether each was seen, its count in the output, and its bias."""
    sampling, output, bias = row.sampling, row.output or {}, dict(row.sampling.logit_bias)
    touched = set(bias)
    if sampling.has_penalties:
        touched |= row.prompt | output.keys()
    ids = sorted(touched)
    counts = [output.get(token, 0) if sampling.has_penalties else 0 for token in ids]
    seen = [
        sampling.has_penalties and (count > 0 or token in row.prompt)
        for token, count in zip(ids, counts, strict=True)
    ]
    biases = [bias.get(token, 0.0) for token in ids]
    return (
        ids,
        torch.tensor(seen, dtype=torch.bool),
        torch.tensor(counts).float(),
        torch.tensor(biases, dtype=torch.float32),
    )
