"""The scan of ``scan.py`` as two Triton kernels; a program loops over all chunks of a head.

A program computes a block of value columns independently of the other programs, and keeps its part
of the state in registers as fp32. Widths and the chunk length are powers of two of at least 16.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 64


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    w_ptr, u_ptr, k_ptr, decay_ptr, values_ptr, states_ptr, chunks, rows,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """W, K [N, M, C, DK], U [N, M, C, DV], decay [N, M] -> values like U, states [N, M, DK, DV]."""
    row = tl.program_id(0)
    inside = tl.arange(0, C)[:, None]
    wide = tl.arange(0, DK)[None, :]
    down = tl.arange(0, DK)[:, None]
    column = tl.program_id(1) * BV + tl.arange(0, BV)[None, :]
    state = tl.zeros((DK, BV), dtype=tl.float32)
    for n in range(chunks):
        place = (n * rows + row).to(tl.int64)
        keys = place * C * DK + inside * DK + wide
        vals = place * C * DV + inside * DV + column
        rounded = state.to(states_ptr.dtype.element_ty)
        tl.store(states_ptr + place * DK * DV + down * DV + column, rounded)
        new = tl.load(u_ptr + vals).to(tl.float32) - tl.dot(tl.load(w_ptr + keys), rounded)
        new = new.to(values_ptr.dtype.element_ty)
        tl.store(values_ptr + vals, new)
        state = state * tl.load(decay_ptr + place) + tl.dot(tl.trans(tl.load(k_ptr + keys)), new)


@triton.jit  # type: ignore[untyped-decorator]
def _backward(  # type: ignore[no-untyped-def]
    grad_values_ptr, grad_states_ptr, w_ptr, k_ptr, decay_ptr, total_ptr, after_ptr, chunks, rows,
    C: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr,
):  # fmt: skip
    """Loops from the last chunk to the first; the gradient takes the place of the state."""
    row = tl.program_id(0)
    inside = tl.arange(0, C)[:, None]
    wide = tl.arange(0, DK)[None, :]
    down = tl.arange(0, DK)[:, None]
    column = tl.program_id(1) * BV + tl.arange(0, BV)[None, :]
    grad = tl.zeros((DK, BV), dtype=tl.float32)
    for back in range(chunks):
        place = ((chunks - 1 - back) * rows + row).to(tl.int64)
        keys = place * C * DK + inside * DK + wide
        vals = place * C * DV + inside * DV + column
        whole = place * DK * DV + down * DV + column
        rounded = grad.to(after_ptr.dtype.element_ty)
        tl.store(after_ptr + whole, rounded)
        total = tl.dot(tl.load(k_ptr + keys), rounded)
        total = (total + tl.load(grad_values_ptr + vals)).to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + vals, total)
        grad = grad * tl.load(decay_ptr + place) + tl.load(grad_states_ptr + whole)
        grad -= tl.dot(tl.trans(tl.load(w_ptr + keys)), total)


def forward(w: Tensor, u: Tensor, k: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    chunks, rows, length, width = w.shape
    columns = u.shape[-1]
    values, states = torch.empty_like(u), u.new_empty(chunks, rows, width, columns)
    block = min(COLUMNS, columns)
    _forward[(rows, columns // block)](
        w, u, k, decay, values, states, chunks, rows,
        C=length, DK=width, DV=columns, BV=block, num_warps=4, num_stages=2,
    )  # fmt: skip
    return values, states


def backward(
    grad_values: Tensor, grad_states: Tensor, w: Tensor, k: Tensor, decay: Tensor
) -> tuple[Tensor, Tensor]:
    chunks, rows, length, width = w.shape
    columns = grad_values.shape[-1]
    total, after = torch.empty_like(grad_values), torch.empty_like(grad_states)
    block = min(COLUMNS, columns)
    _backward[(rows, columns // block)](
        grad_values, grad_states, w, k, decay, total, after, chunks, rows,
        C=length, DK=width, DV=columns, BV=block, num_warps=4, num_stages=2,
    )  # fmt: skip
    return total, after
