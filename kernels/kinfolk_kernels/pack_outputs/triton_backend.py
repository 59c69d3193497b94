"""``pack_outputs`` on the GPU, in one launch."""

from __future__ import annotations

import torch
import triton

from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.pack_outputs.kernel import pack_outputs_kernel
from kinfolk_kernels.pack_outputs.op import PackOutputsArguments
from kinfolk_kernels.verdict import YES, Verdict, no

PACK_TILE_COLUMNS = 8192
"""Numbers of a hidden row that are checked at once."""


def supports(arguments: PackOutputsArguments) -> Verdict:
    reason = refuses_device(pack_outputs_kernel, arguments.device)
    return no(reason) if reason else YES


def pack_outputs(
    arguments: PackOutputsArguments,
    hidden: torch.Tensor,
    spans: torch.Tensor,
    finite: torch.Tensor,
    rows: torch.Tensor,
    tokens: torch.Tensor,
    n_keep: torch.Tensor,
    following: torch.Tensor,
    path: torch.Tensor,
) -> torch.Tensor:
    """See :class:`PackOutputsArguments`."""
    if hidden.stride(-1) != 1:
        hidden = hidden.contiguous()
    size = spans.shape[0] + 3 * rows.shape[0] + 2 * rows.numel()
    packed = torch.empty(size, dtype=torch.int64, device=hidden.device)
    pack(hidden, spans, finite, rows, tokens, n_keep, following, path, packed).run()
    return packed


def pack(
    hidden: torch.Tensor,
    spans: torch.Tensor,
    finite: torch.Tensor,
    rows: torch.Tensor,
    tokens: torch.Tensor,
    n_keep: torch.Tensor,
    following: torch.Tensor,
    path: torch.Tensor,
    out: torch.Tensor,
) -> Launch:
    """The launch that fills ``out`` int64 [B + 3 S + 2 S T]."""
    sequences, (sampled, width) = spans.shape[0], rows.shape
    return Launch(
        pack_outputs_kernel,
        (sequences + sampled,),
        {
            "hidden_ptr": hidden,
            "spans_ptr": spans,
            "finite_ptr": finite.view(torch.uint8),
            "rows_ptr": rows,
            "tokens_ptr": tokens,
            "n_keep_ptr": n_keep,
            "following_ptr": following,
            "path_ptr": path,
            "out_ptr": out,
            "sequences": sequences,
            "sampled": sampled,
            "hidden_row": hidden.stride(0),
        },
        {
            "HIDDEN": hidden.shape[1],
            "COLUMNS": min(PACK_TILE_COLUMNS, triton.next_power_of_2(hidden.shape[1])),
            "WIDTH": width,
            "PLACES": triton.next_power_of_2(max(1, width)),
        },
        warps=4,
    )
