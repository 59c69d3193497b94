"""The op ``fetch_experts``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic

import torch

from kinfolk_kernels.experts.op import ExpertsArguments, S, Stack, experts
from kinfolk_kernels.fetch.op import FetchArguments, fetch
from kinfolk_kernels.op import Op


@dataclass(frozen=True, slots=True)
class FetchExpertsArguments(Generic[S]):
    """``fetch``, then ``experts``, of one layer.

    Operands: those of :class:`ExpertsArguments`, x [R, W], ids int64 and weights float32
    [R, top_k]. Results: those of both, bit for bit.
    """

    fetch: FetchArguments
    experts: ExpertsArguments[S]


def fetch_experts(
    arguments: FetchExpertsArguments[Stack],
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
) -> torch.Tensor:
    """See :class:`FetchExpertsArguments`."""
    fetch(arguments.fetch, ids)
    return experts(arguments.experts, x, ids, weights)


FETCH_EXPERTS = Op("fetch_experts", FetchExpertsArguments, fetch_experts)
