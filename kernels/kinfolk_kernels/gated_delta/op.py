"""The ops ``gated_delta`` and ``gated_delta_commit``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kinfolk_kernels.op import Op
from kinfolk_kernels.rows import Rows


@dataclass(frozen=True, slots=True)
class GatedDeltaArguments:
    """The gated delta rule (Yang et al., 2024) for rows with parents, and its commit.

    State S [dv, dk] of a value head, per row with decay g <= 0 and rate beta:
    S <- e^g S;  d = beta (v - S k);  S <- S + d k^T;  o = S q.
    Value head h reads key head h mod Hk. A row starts from its parent's state, a root from the
    slot's.

    ``dtype`` is that of the model's activations: where they are not float32, products of a slice's
    chunks may have the eleven bits of float16. Sums and the state are float32 always.

    Operands of ``gated_delta``, all float32: q (scaled) and k [R, Hk, dk], v [R, Hv, dv], g and
    beta [R, Hv]; state [slots, Hv, dv, dk]; the rows of the step. Result: o [R, Hv, dv], and the
    :class:`DeltaTrace` if rows are drafted. Certain segments advance the state in place, drafted
    ones do not change it; the state after each of ``store_rows`` is copied to ``store_slots``.

    Operands of ``gated_delta_commit``: of each of several layers, trace and state; path int64
    [D, T], kept rows padded with -1; n_keep and slot int64 [D].
    S <- e^{G_n} S + sum_j e^{G_n - G_j} d_j k_j^T over the kept rows; a segment with ``n_keep`` 0
    does not change the state.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True)
class DeltaTrace:
    """The trace that a commit reads, filled for drafted rows only: k [R, Hk, dk], d [R, Hv, dv] and
    ``total`` [R, Hv], the decay summed along the path from the committed state to each row.
    ``total`` is float64, as a commit uses its differences, which after a strong decay would have
    few digits in float32."""

    k: torch.Tensor
    d: torch.Tensor
    total: torch.Tensor


def gated_delta(
    arguments: GatedDeltaArguments,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    rows: Rows,
) -> tuple[torch.Tensor, DeltaTrace | None]:
    """See :class:`GatedDeltaArguments`."""
    heads = torch.arange(v.shape[1], device=v.device) % k.shape[1]
    trace = empty_trace(k, v, g) if rows.layout.traits.draft_rows else None
    out = torch.empty_like(v)
    states: dict[int, torch.Tensor] = {}
    totals: dict[int, torch.Tensor] = {}
    parents = rows.parent_row.tolist()
    for segment in rows.layout.segments:
        root = state[segment.slot].clone()
        for row in range(segment.start, segment.stop):
            parent = parents[row]
            entry = states[parent] if parent >= 0 else root
            decayed = entry * g[row].exp()[:, None, None]
            kr, qr = k[row, heads], q[row, heads]
            d = beta[row][:, None] * (v[row] - torch.einsum("hvk,hk->hv", decayed, kr))
            states[row] = decayed + torch.einsum("hv,hk->hvk", d, kr)
            totals[row] = g[row].double() + (totals[parent] if parent >= 0 else 0)
            out[row] = torch.einsum("hvk,hk->hv", states[row], qr)
            if trace is not None and segment.drafted:
                trace.k[row], trace.d[row], trace.total[row] = k[row], d, totals[row]
        if not segment.drafted:
            state[segment.slot] = states[segment.stop - 1]
    for row, slot in zip(rows.store_rows.tolist(), rows.store_slots.tolist(), strict=True):
        if row >= 0:
            state[slot] = states[row]
    return out, trace


def gated_delta_commit(
    arguments: GatedDeltaArguments,
    layers: Sequence[tuple[DeltaTrace, torch.Tensor]],
    path: torch.Tensor,
    n_keep: torch.Tensor,
    slot: torch.Tensor,
) -> None:
    """See :class:`GatedDeltaArguments`."""
    for trace, state in layers:
        heads = torch.arange(state.shape[1], device=state.device) % trace.k.shape[1]
        for i in range(path.shape[0]):
            kept = path[i, : int(n_keep[i])]
            if not len(kept):
                continue
            end = trace.total[kept[-1]]
            weight = (end - trace.total[kept]).float().exp()
            update = torch.einsum("th,thv,thk->hvk", weight, trace.d[kept], trace.k[kept][:, heads])
            state[slot[i]] = state[slot[i]] * end.float().exp()[:, None, None] + update


def empty_trace(k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> DeltaTrace:
    total = torch.zeros_like(g, dtype=torch.float64)
    return DeltaTrace(torch.zeros_like(k), torch.zeros_like(v), total)


GATED_DELTA = Op("gated_delta", GatedDeltaArguments, gated_delta)
GATED_DELTA_COMMIT = Op("gated_delta_commit", GatedDeltaArguments, gated_delta_commit)
