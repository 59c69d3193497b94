"""Sampling: penalties, bias, truncation, and a draw that depends on nothing but its row.

n rows of logits [n, V]. A row draws by Gumbel-max: the token with the largest sum of scaled logit
and noise, of those that truncation leaves. Noise is a function of seed, position and token, so
neither the batch nor speculation changes a draw.
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

Records = npt.NDArray[np.void]
"""An array of structures ``PARAMETER_ROW``."""


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


def uploaded_sampling(
    parameters: Records, kind: SamplingKind, edits: Edits | None, device: torch.device, draw: Draw
) -> RowSampling:
    """Upload ``PARAMETER_ROW`` [n] in a copy of their own."""
    count = (len(parameters),)
    transfer = Transfer({name: (kind, count) for name, kind in PARAMETERS.items()}, device)
    fill_parameters(transfer.host, parameters)
    transfer.upload()
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


def write_parameters(records: Records, sampling: Sampling, positions: Sequence[int]) -> None:
    """Write the parameters of a request's rows to ``records``, ``PARAMETER_ROW`` [n]. ``positions``
    are those of the tokens to be chosen. Raises NumPy's error for a value that does not fit its
    dtype."""
    records[...] = (
        sampling.temperature and max(sampling.temperature, COLDEST),
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        signed_seed(sampling.seed),
        0,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
    )
    records["position"] = positions


def fill_parameters(arrays: Mapping[str, npt.NDArray[Any]], parameters: Records) -> None:
    """Write ``PARAMETER_ROW`` [n] to the first n places of host arrays."""
    for name in PARAMETERS:
        arrays[name][: len(parameters)] = parameters[name]


def signed_seed(seed: int) -> int:
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
