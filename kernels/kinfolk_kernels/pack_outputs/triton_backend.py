"""Packs the outputs of a step in one launch; see the reference."""

from __future__ import annotations

import torch
import triton

from kinfolk_kernels.launch import Launch
from kinfolk_kernels.pack_outputs.kernel import pack_outputs_kernel
from kinfolk_kernels.sections import NUMBERS, out_of_reach
from kinfolk_kernels.verdict import YES, Verdict, no

COLUMNS = 8192
"""Numbers of a hidden row that are looked at together."""


def supports(
    hidden: torch.Tensor,
    last_row: torch.Tensor,
    finite: torch.Tensor,
    rows: torch.Tensor,
    n_keep: torch.Tensor,
    following: torch.Tensor,
    path: torch.Tensor,
) -> Verdict:
    """Whether ``pack_outputs`` can do this call."""
    lanes = (finite, rows, n_keep, following, path)
    reason = out_of_reach(pack_outputs_kernel, hidden, last_row, *lanes)
    if reason:
        return no(reason)
    if hidden.dtype not in NUMBERS or hidden.stride(-1) != 1:
        return no(f"the hidden rows are not contiguous numbers ({hidden.dtype})")
    if not all(x.is_contiguous() for x in (last_row, *lanes)):
        return no("what is known of sequences or lanes is not contiguous")
    return YES


def pack_outputs(
    hidden: torch.Tensor,
    last_row: torch.Tensor,
    finite: torch.Tensor,
    rows: torch.Tensor,
    n_keep: torch.Tensor,
    following: torch.Tensor,
    path: torch.Tensor,
) -> torch.Tensor:
    """See the reference."""
    size = last_row.shape[0] + 3 * rows.shape[0] + rows.numel()
    out = torch.empty(size, dtype=torch.int64, device=hidden.device)
    pack(hidden, last_row, finite, rows, n_keep, following, path, out).run()
    return out


def pack(
    hidden: torch.Tensor,
    last_row: torch.Tensor,
    finite: torch.Tensor,
    rows: torch.Tensor,
    n_keep: torch.Tensor,
    following: torch.Tensor,
    path: torch.Tensor,
    out: torch.Tensor,
) -> Launch:
    """The launch that fills ``out`` int64 [B + 3 L + L T]."""
    sequences, (lanes, width) = last_row.shape[0], rows.shape
    return Launch(
        pack_outputs_kernel,
        (sequences + lanes,),
        {
            "hidden_ptr": hidden,
            "last_row_ptr": last_row,
            "finite_ptr": finite.view(torch.uint8),
            "rows_ptr": rows,
            "n_keep_ptr": n_keep,
            "following_ptr": following,
            "path_ptr": path,
            "out_ptr": out,
            "sequences": sequences,
            "lanes": lanes,
            "hidden_row": hidden.stride(0),
        },
        {
            "HIDDEN": hidden.shape[1],
            "COLUMNS": min(COLUMNS, triton.next_power_of_2(hidden.shape[1])),
            "WIDTH": width,
            "PLACES": triton.next_power_of_2(max(1, width)),
        },
        warps=4,
    )
