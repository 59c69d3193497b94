"""The ops ``delta_inputs`` and ``causal_conv_commit``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kinfolk_kernels.op import Op
from kinfolk_kernels.rows import Rows


@dataclass(frozen=True, slots=True)
class DeltaInputsArguments:
    """Computes the inputs of the gated delta rule from a delta net's projections (Yang et al.,
    2024).

    A depthwise causal convolution with SiLU, ``weight`` float32 [C, taps], over the channels of
    ``key_heads`` heads of q and k and ``value_heads`` of v, all of one dimension; q and k to unit
    length, ``eps`` added to the sum of squares, q over sqrt(D); g = a softplus(alpha + dt);
    beta = sigmoid(beta).

    Operands: x [R, C] in ``dtype``; the :class:`DeltaGates` of the rows; state float32
    [slots, taps - 1, C]; the rows of the step. Certain segments advance the state in place, drafted
    ones do not change it; the state after each of ``store_rows`` is copied to ``store_slots``.
    Result: :class:`DeltaRows`.
    """

    weight: torch.Tensor
    key_heads: int
    value_heads: int
    eps: float
    dtype: torch.dtype
    device: torch.device

    @property
    def dim(self) -> int:
        return int(self.weight.shape[0]) // (2 * self.key_heads + self.value_heads)


@dataclass(frozen=True, slots=True)
class CausalConvCommitArguments:
    """Advance the convolution's state along the kept rows of drafted segments.

    Operands: of each of several layers, x [R, C] in ``dtype``, as the convolution read it, and
    state float32 [slots, taps - 1, C]; path int64 [D, T], kept rows padded with -1; n_keep and slot
    int64 [D]. A segment with ``n_keep`` 0 does not change the state.
    """

    dtype: torch.dtype
    device: torch.device


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


def causal_conv(
    x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, rows: Rows
) -> torch.Tensor:
    """x [R, C], weight [C, K], state [slots, K-1, C] float32 -> [R, C] in the dtype of ``x``.

    y_t[c] = silu(sum_j w[c, j] x_{t-K+1+j}[c]): the last tap multiplies the current row, earlier
    taps multiply the row's ancestors and, before the first of them, the last K-1 committed inputs.

    Certain segments advance ``state`` in place; drafted ones do not change it. The state after each
    of ``store_rows`` is copied to ``store_slots``.
    """
    taps = weight.shape[1]
    out = torch.empty_like(x)
    history: dict[int, torch.Tensor] = {}
    committed = state[rows.slot_of_sequence].clone()
    parents = rows.parent_row.tolist()
    for segment in rows.layout.segments:
        for row in range(segment.start, segment.stop):
            parent = parents[row]
            past = history[parent] if parent >= 0 else committed[segment.sequence]
            seen = torch.cat([past, x[row : row + 1].float()])
            out[row] = torch.nn.functional.silu((seen * weight.T.float()).sum(0)).to(x.dtype)
            history[row] = seen[-(taps - 1) :]
        if not segment.drafted:
            state[segment.slot] = history[segment.stop - 1]
    for row, slot in zip(rows.store_rows.tolist(), rows.store_slots.tolist(), strict=True):
        if row >= 0:
            state[slot] = history[row]
    return out


def delta_inputs(
    arguments: DeltaInputsArguments,
    x: torch.Tensor,
    gates: DeltaGates,
    state: torch.Tensor,
    rows: Rows,
) -> DeltaRows:
    """See :class:`DeltaInputsArguments`."""
    return delta_rows(causal_conv, arguments, x, gates, state, rows)


def causal_conv_commit(
    arguments: CausalConvCommitArguments,
    layers: Sequence[tuple[torch.Tensor, torch.Tensor]],
    path: torch.Tensor,
    n_keep: torch.Tensor,
    slot: torch.Tensor,
) -> None:
    """See :class:`CausalConvCommitArguments`."""
    for x, state in layers:
        for d in range(path.shape[0]):
            kept = path[d, : int(n_keep[d])]
            seen = torch.cat([state[slot[d]], x[kept].float()])
            state[slot[d]] = seen[-state.shape[1] :]


DELTA_INPUTS = Op("delta_inputs", DeltaInputsArguments, delta_inputs)
CAUSAL_CONV_COMMIT = Op("causal_conv_commit", CausalConvCommitArguments, causal_conv_commit)
