"""Depthwise causal convolution in torch: the ancestors of all rows are gathered at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kinfolk_kernels.causal_conv.op import (
    CausalConvCommitArguments,
    DeltaGates,
    DeltaInputsArguments,
    DeltaRows,
    delta_rows,
)
from kinfolk_kernels.rows import Rows


def causal_conv(
    x: torch.Tensor, weight: torch.Tensor, state: torch.Tensor, rows: Rows
) -> torch.Tensor:
    """See :func:`kinfolk_kernels.causal_conv.op.causal_conv`."""
    past = state.shape[1]
    inputs = x.float()
    # The table to gather from: committed inputs of every sequence, then the rows.
    table = torch.cat([state[rows.slot_of_sequence].flatten(0, 1), inputs])
    taps = _ancestors(rows, past, rows.slot_of_sequence.shape[0] * past)
    seen = table[taps]
    out = torch.nn.functional.silu((seen * weight.T.float()).sum(1)).to(x.dtype)
    certain = [(s.stop - 1, s.slot) for s in rows.layout.segments if not s.drafted]
    if certain:
        last, slots = torch.tensor(certain, device=x.device).T
        state[slots] = seen[last, 1:]
    if rows.store_rows.numel():
        # The last row stands in for padding, whose slot is a dummy.
        state[rows.store_slots] = seen[rows.store_rows, 1:]
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
        past = state.shape[1]
        seen = torch.cat([state[slot], x.float()[path.clamp_min(0)]], 1)  # [D, past + T, C]
        index = n_keep[:, None] + torch.arange(past, device=x.device)
        state[slot] = seen.gather(1, index[..., None].expand(-1, -1, seen.shape[2]))


def _ancestors(rows: Rows, past: int, first_row: int) -> torch.Tensor:
    """[R, past + 1] places in the table of each row's ancestors, oldest first, itself last."""
    row = torch.arange(rows.parent_row.shape[0], device=rows.parent_row.device)
    base = rows.sequence_of_row * past
    missing = torch.zeros_like(row)
    places = [row + first_row]
    for _ in range(past):
        row = torch.where(row >= 0, rows.parent_row[row.clamp_min(0)], row)
        missing = torch.where(row < 0, missing + 1, 0)
        places.append(torch.where(row >= 0, row + first_row, base + past - missing))
    return torch.stack(places[::-1], 1)
