"""Sampling: penalties, bias, truncation, and a draw that depends on nothing but its row.

n rows of logits [n, V]. A row's draw depends on its logits, its parameters, its seed and its
position, so neither the batch nor speculation changes it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from kinfolk.sched.request import Sampling
from kinfolk.state.transfer import Transfer
from kinfolk.verify_api import Draw, Edits, RowSampling
from kinfolk_kernels.sample.op import SAMPLE, SampleArguments

REFERENCE_DRAW: Final[Draw] = partial(SAMPLE.reference, SampleArguments(torch.device("cpu")))
"""The reference, which draws on any device."""

COLDEST = 1e-30
"""Least temperature to divide by: below it the quotients of usual logits overflow float32."""

TOP_K_SIZES = (64, 1024)
"""Candidates that are sorted where every row has a top-k: the smallest that holds the largest k."""

PARAMETERS = {
    "temperature": "float32",
    "top_k": "int64",
    "top_p": "float32",
    "min_p": "float32",
    "seed": "int64",
    "position": "int64",
    "repetition": "float32",
    "presence": "float32",
    "frequency": "float32",
}
"""Sampling parameters: name and dtype of each array [n]."""

PARAMETER_ROW: Final = np.dtype(list(PARAMETERS.items()))
"""The parameters of one row as a structure."""

PENALTIES: Final = ("repetition", "presence", "frequency")

_ENTRIES = {
    "row": "int64",
    "token": "int64",
    "seen": "int64",
    "count": "float32",
    "bias": "float32",
}
_ENTRY: Final = np.dtype(list(_ENTRIES.items()))

Records = npt.NDArray[np.void]
"""An array of structures: of ``PARAMETER_ROW``, or of changes of logits."""


@dataclass(frozen=True, slots=True)
class RowContext:
    """Sampling parameters and history of one row.

    ``position`` is that of the token to be chosen. ``prompt`` holds the ids of the prompt,
    ``output`` counts those emitted or drafted before this row; both are read only if the row's
    sampling has penalties. Without drafts, all rows of a request share one ``output`` object,
    which identifies the request.
    """

    sampling: Sampling
    position: int
    prompt: frozenset[int] = frozenset()
    output: Mapping[int, int] | None = None


@dataclass(frozen=True, slots=True)
class _Entries:
    """Sparse changes of E logits, all fields [E]: ``row`` and ``token`` of each, whether the
    request has ``seen`` the token, its ``count`` in the output, and its ``bias``. The host builds
    them for every step."""

    row: torch.Tensor
    token: torch.Tensor
    seen: torch.Tensor
    count: torch.Tensor
    bias: torch.Tensor

    def apply(self, logits: torch.Tensor, rows: RowSampling) -> torch.Tensor:
        changed = logits.clone()
        penalties = (getattr(rows, name)[self.row] for name in PENALTIES)
        changed[self.row, self.token] = edited(
            logits[self.row, self.token], self.seen > 0, self.count, self.bias, *penalties
        )
        return changed

    def note(self, tokens: torch.Tensor) -> None:
        """The host counts the tokens itself, when it reads them."""


def edited(
    logits: torch.Tensor,
    seen: torch.Tensor,
    count: torch.Tensor,
    bias: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> torch.Tensor:
    """Logits float32 after penalties and bias; the arguments have one shape or broadcast to it."""
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    penalty = frequency * count + presence * (count > 0)
    return torch.where(seen, repeated, logits) - (penalty - bias)


@dataclass(frozen=True, slots=True)
class SamplingKind:
    """Selects the kernels that sample: whether every row is greedy, how many candidates are sorted
    (0 = all), and whether logits are edited before."""

    greedy: bool
    largest_top_k: int
    edited: bool = False


def row_sampling(
    rows: Sequence[RowContext], device: torch.device, draw: Draw = REFERENCE_DRAW
) -> RowSampling:
    """Upload the parameters of ``rows`` in a copy of their own."""
    kind = kind_of([row.sampling for row in rows])
    return uploaded_sampling(parameters_of(rows), entries_of(rows), kind, device, draw)


def uploaded_sampling(
    parameters: Records, entries: Records, kind: SamplingKind, device: torch.device, draw: Draw
) -> RowSampling:
    """Upload the results of :func:`parameters_of` and :func:`entries_of`."""
    count, changed = (len(parameters),), (len(entries),)
    transfer = Transfer(
        {
            **{name: (kind, count) for name, kind in PARAMETERS.items()},
            **{name: (kind, changed) for name, kind in _ENTRIES.items()},
        },
        device,
    )
    fill_parameters(transfer.host, parameters)
    for name in _ENTRIES:
        transfer.host[name][:] = entries[name]
    transfer.upload()
    changes = (transfer.device[name] for name in _ENTRIES)
    edits = _Entries(*changes) if len(entries) else None
    return sampling_over(transfer.device, kind, edits, draw)


def sampling_over(
    arrays: Mapping[str, torch.Tensor], kind: SamplingKind, edits: Edits | None, draw: Draw
) -> RowSampling:
    """Wrap device arrays [n], named as in ``PARAMETERS``, without a copy."""
    return RowSampling(
        greedy=kind.greedy,
        temperature=arrays["temperature"],
        top_k=arrays["top_k"],
        top_p=arrays["top_p"],
        min_p=arrays["min_p"],
        seed=arrays["seed"],
        position=arrays["position"],
        repetition=arrays["repetition"],
        presence=arrays["presence"],
        frequency=arrays["frequency"],
        largest_top_k=kind.largest_top_k,
        edits=edits,
        draw=draw,
    )


def kind_of(samplings: Sequence[Sampling]) -> SamplingKind:
    """The kind of a step whose rows are sampled with ``samplings``."""
    sampled = [each for each in samplings if not each.greedy]
    is_edited = any(each.is_edited for each in samplings)
    if not sampled:
        return SamplingKind(greedy=True, largest_top_k=0, edited=is_edited)
    limited = all(each.top_k > 0 for each in sampled)
    largest = max(each.top_k for each in sampled) if limited else 0
    # Rounded up, as kernels are compiled for each size; 0 = the whole vocabulary is sorted.
    size = next((size for size in TOP_K_SIZES if 0 < largest <= size), 0)
    return SamplingKind(greedy=False, largest_top_k=size, edited=is_edited)


def parameters_of(rows: Sequence[RowContext]) -> Records:
    """``PARAMETER_ROW`` [n]. Raises NumPy's error for a value that does not fit its dtype."""
    records = np.empty(len(rows), PARAMETER_ROW)
    write_parameters(records, rows)
    return records


def write_parameters(records: Records, rows: Sequence[RowContext]) -> None:
    """Write the parameters of ``rows`` to ``records``, ``PARAMETER_ROW`` [n]; raises as
    ``parameters_of`` does."""
    for index, row in enumerate(rows):
        params = row.sampling
        records[index] = (
            params.temperature and max(params.temperature, COLDEST),
            params.top_k,
            params.top_p,
            params.min_p,
            _signed(params.seed),
            row.position,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
        )


def fill_parameters(arrays: Mapping[str, npt.NDArray[Any]], parameters: Records) -> None:
    """Write ``PARAMETER_ROW`` [n] to the first n places of host arrays."""
    for name in PARAMETERS:
        arrays[name][: len(parameters)] = parameters[name]


def _signed(seed: int) -> int:
    """The low 64 bits of a seed, as int64 holds them."""
    return (operator.index(seed) + 2**63) % 2**64 - 2**63


def sample(logits: torch.Tensor, rows: RowSampling) -> torch.Tensor:
    """float32 [n, V] -> token ids int64 [n]; an arbitrary id where logits are not finite."""
    return sample_checked(logits, rows)[0]


def sample_checked(
    logits: torch.Tensor, rows: RowSampling
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """float32 [n, V] -> token ids int64 [n], and bool [n] whether a row's logits are finite.

    The flags are ``None`` if logits are edited before the draw: a bias may be infinite.
    """
    if rows.edits is not None:
        return rows.draw(rows.edits.apply(logits, rows), rows)[0], None
    return rows.draw(logits, rows)


def entries_of(rows: Sequence[RowContext]) -> Records:
    """The entries of :class:`_Entries` as structures [E]; ``row`` counts from 0."""
    entries: list[tuple[int, int, bool, int, float]] = []
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
            entries.append((index, token, seen, count, bias.get(token, 0.0)))
    return np.array(entries, _ENTRY)
