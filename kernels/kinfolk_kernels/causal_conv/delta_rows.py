"""The inputs of the gated delta rule, computed from a delta net's projections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kinfolk_kernels.rows import Rows

if TYPE_CHECKING:
    from kinfolk_kernels.causal_conv.op import DeltaInputsArguments

Convolution = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Rows], torch.Tensor]


@dataclass(frozen=True, slots=True)
class DeltaGates:
    """The operands of decays and rates: ``alpha`` and ``beta`` [R, Hv] of the rows, ``a`` =
    -exp(A_log) and ``dt`` float32 [Hv] of the layer."""

    alpha: torch.Tensor
    beta: torch.Tensor
    a: torch.Tensor
    dt: torch.Tensor


@dataclass(frozen=True, slots=True)
class DeltaRows:
    """The operands of the gated delta rule: q (unit length, scaled) and k (unit length) [R, Hk, D],
    v [R, Hv, D], g and beta [R, Hv], all float32. q, k and v are views of one tensor, or have rows
    as wide as such views."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor


def delta_rows(
    convolve: Convolution,
    arguments: DeltaInputsArguments,
    x: torch.Tensor,
    gates: DeltaGates,
    state: torch.Tensor,
    rows: Rows,
) -> DeltaRows:
    """``convolve`` x, and compute the rest in plain tensor arithmetic."""
    count, heads = gates.alpha.shape
    key_heads, dim, eps = arguments.key_heads, arguments.dim, arguments.eps
    mixed = convolve(x, arguments.weight, state, rows).float()
    q, k, v = mixed.split((key_heads * dim, key_heads * dim, heads * dim), 1)
    softplus = torch.nn.functional.softplus(gates.alpha.float() + gates.dt)
    return DeltaRows(
        _unit(q.view(count, key_heads, dim), eps) * dim**-0.5,
        _unit(k.view(count, key_heads, dim), eps),
        v.view(count, heads, dim),
        gates.a * softplus,
        gates.beta.float().sigmoid(),
    )


def _unit(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)
