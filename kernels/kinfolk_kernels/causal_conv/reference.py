"""Depthwise causal convolution with SiLU, for rows with parents, and its commit.

y_t[c] = silu(sum_j w[c, j] x_{t-K+1+j}[c]): the last tap multiplies the current row, earlier taps
multiply the row's ancestors and, before the first of them, the last K-1 committed inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kinfolk_kernels.causal_conv.delta_rows import DeltaGates, DeltaRows, delta_rows
from kinfolk_kernels.rows import Rows

if TYPE_CHECKING:
    from kinfolk_kernels.causal_conv.op import CausalConvCommitArguments, DeltaInputsArguments


def causal_conv(
    x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, rows: Rows
) -> torch.Tensor:
    """x [R, C], weight [C, K], state [slots, K-1, C] float32 -> [R, C] in the dtype of ``x``.

    Certain segments advance ``state`` in place; drafted ones do not change it. The state after each
    of ``store_rows`` is copied to ``store_slots``.
    """
    taps = weight.shape[1]
    out = torch.empty_like(x)
    history: dict[int, torch.Tensor] = {}
    committed = state[rows.slot_of_sequence].clone()
    for segment in rows.layout.segments:
        for row in range(segment.start, segment.stop):
            parent = int(rows.parent_row[row])
            past = history[parent] if parent >= 0 else committed[segment.sequence]
            seen = torch.cat([past, x[row : row + 1].float()])
            out[row] = torch.nn.functional.silu((seen * weight.T.float()).sum(0)).to(x.dtype)
            history[row] = seen[-(taps - 1) :]
        if not segment.drafted:
            state[segment.slot] = history[segment.stop - 1]
    for row, slot in zip(rows.store_rows.tolist(), rows.store_slots.tolist(), strict=True):
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
    x: torch.Tensor,
    state: torch.Tensor,
    path: torch.Tensor,
    n_keep: torch.Tensor,
    slot: torch.Tensor,
) -> None:
    """See :class:`CausalConvCommitArguments`."""
    for d in range(path.shape[0]):
        kept = path[d, : int(n_keep[d])]
        seen = torch.cat([state[slot[d]], x[kept].float()])
        state[slot[d]] = seen[-state.shape[1] :]
