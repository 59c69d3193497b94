"""``write_queries`` on the GPU, in one launch."""

from __future__ import annotations

import torch
import triton

from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.stored_kind import FLOATS
from kinfolk_kernels.verdict import YES, Verdict, no
from kinfolk_kernels.write_queries.kernel import write_queries_kernel
from kinfolk_kernels.write_queries.op import RING_ROWS, WriteQueriesArguments

COPIED_NUMBERS = 2048
"""Numbers that a program copies, 16 a thread."""


def supports(arguments: WriteQueriesArguments) -> Verdict:
    reason = refuses_device(write_queries_kernel, arguments.device)
    if reason:
        return no(reason)
    if arguments.dtype not in FLOATS:
        return no(f"queries of {arguments.dtype}")
    return YES


def write_queries(
    arguments: WriteQueriesArguments,
    queries: torch.Tensor,
    positions: torch.Tensor,
    spans: torch.Tensor,
    path: torch.Tensor,
    n_keep: torch.Tensor,
    slots: torch.Tensor,
    ring: torch.Tensor,
) -> None:
    """See :class:`WriteQueriesArguments`."""
    if queries.stride(-1) != 1:
        queries = queries.contiguous()
    if len(spans) + len(path):
        keep(queries, positions, spans, path.contiguous(), n_keep, slots, ring).run()


def keep(
    queries: torch.Tensor,
    positions: torch.Tensor,
    spans: torch.Tensor,
    path: torch.Tensor,
    n_keep: torch.Tensor,
    slots: torch.Tensor,
    ring: torch.Tensor,
) -> Launch:
    """The launch that writes ``ring``, whose vectors must be contiguous."""
    heads, dim = queries.shape[1:]
    size = triton.next_power_of_2(dim)
    own = max(1, min(triton.next_power_of_2(heads), COPIED_NUMBERS // size))
    return Launch(
        write_queries_kernel,
        (len(spans) + len(path), RING_ROWS, triton.cdiv(heads, own)),
        {
            "q_ptr": queries,
            "positions": positions,
            "spans": spans,
            "path": path,
            "n_keep": n_keep,
            "slots": slots,
            "ring_ptr": ring,
            "sequences": len(spans),
            "most_kept": path.shape[1],
            "q_row": queries.stride(0),
            "q_head": queries.stride(1),
            "ring_slot": ring.stride(0),
            "ring_row": ring.stride(1),
            "ring_head": ring.stride(2),
        },
        {"HEADS": heads, "DIM": dim, "OWN": own, "SIZE": size},
    )
