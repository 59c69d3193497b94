"""``embedding`` from a packed table, on the GPU."""

from __future__ import annotations

import torch

from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.embedding.op import EmbeddingArguments
from kinfolk_kernels.linear.dequantize import gather
from kinfolk_kernels.linear.dequantize_kernel import gather_kernel
from kinfolk_kernels.linear.triton_backend import INTERPRETED
from kinfolk_kernels.planes import Planes
from kinfolk_kernels.verdict import YES, Verdict, no


def supports(arguments: EmbeddingArguments) -> Verdict:
    if not isinstance(arguments.table, Planes):
        return no("the table is not packed")
    reason = refuses_device(gather_kernel, arguments.table.device)
    return no(reason) if reason else YES


def embedding(arguments: EmbeddingArguments, tokens: torch.Tensor) -> torch.Tensor:
    """See :class:`EmbeddingArguments`; the table is packed."""
    table = arguments.table
    assert isinstance(table, Planes)
    rows = torch.empty(tokens.shape[0], table.columns, device=tokens.device)
    if tokens.shape[0]:
        gather(table, tokens, rows, arguments.scale, asm=not INTERPRETED).run()
    return rows
