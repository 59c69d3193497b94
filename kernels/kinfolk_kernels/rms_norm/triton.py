"""Root-mean-square normalisation on the GPU, alone and with what stands around it in a step.

A row is summed by one program in a layout that depends on its width only, so that no row depends on
how many there are. Everything between reading and writing is float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.int8_rows import GROUP, with_int8, worth_int8
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.rms_norm.kernels import gated_norm_kernel, norm_kernel
from kinfolk_kernels.row_outputs import RowOutputs
from kinfolk_kernels.sections import out_of_reach
from kinfolk_kernels.verdict import YES, Verdict, no

LONGEST = 16384
"""Numbers in the widest row."""

TILE = 1024
"""Numbers a program, for rows that are not wider."""

FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Branch:
    """What is added to the residual stream: rows [R, D], normed before if ``eps`` is given."""

    rows: torch.Tensor
    weight: torch.Tensor | None = None
    eps: float | None = None


def supports(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, dtype: torch.dtype
) -> Verdict:
    """Whether ``rms_norm`` can do this call."""
    reason = out_of_reach(norm_kernel, x)
    if reason:
        return no(reason)
    if x.shape[-1] > LONGEST:
        return no(f"a row has {x.shape[-1]} numbers, more than {LONGEST}")
    if x.dtype not in FLOATS or dtype not in FLOATS:
        return no(f"rows of {x.dtype} to {dtype}")
    return YES


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, dtype: torch.dtype
) -> torch.Tensor:
    """See the reference. Few rows get int8 ones beside them, for the matrices that follow."""
    made = rms_norm_rows(x, weight, eps, dtype, int8=worth_int8(x))
    return with_int8(made.values.view(x.shape), made.int8)  # type: ignore[union-attr]


def supports_add(
    residual: torch.Tensor,
    branch: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    dtype: torch.dtype,
) -> Verdict:
    """Whether ``add_rms_norm`` can do this call."""
    if residual.dtype != torch.float32 or not residual.is_contiguous() or residual.dim() != 2:
        return no("the residual stream is not contiguous float32 [R, D]")
    if branch.dtype not in FLOATS or branch.stride(-1) != 1:
        return no("a branch that is no contiguous row of floating point numbers")
    return supports(residual, weight, eps, dtype)


def add_rms_norm(
    residual: torch.Tensor,
    branch: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See the reference."""
    int8 = worth_int8(residual)
    total, made = add_rms_norm_rows(residual, Branch(branch), weight, eps, dtype, int8=int8)
    return total, with_int8(made.values, made.int8)  # type: ignore[arg-type]


def supports_gated(
    x: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor, eps: float, dtype: torch.dtype
) -> Verdict:
    """Whether ``gated_rms_norm`` can do this call."""
    dim = x.shape[-1]
    if not x.is_contiguous() or gate.stride(-1) != 1 or gate.dtype not in FLOATS:
        return no("heads or gates are not contiguous rows of floating point numbers")
    if dim & (dim - 1) or not GROUP <= dim <= TILE:
        return no(f"heads of {dim} numbers, not a power of two from {GROUP} to {TILE}")
    return supports(x, weight, eps, dtype)


def gated_rms_norm(
    x: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor, eps: float, dtype: torch.dtype
) -> torch.Tensor:
    """See the reference."""
    made = gated_rms_norm_rows(x, weight, gate, eps, dtype, int8=worth_int8(gate))
    return with_int8(made.values, made.int8)  # type: ignore[arg-type]


def rms_norm_rows(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    dtype: torch.dtype | None,
    *,
    int8: bool,
) -> RowOutputs:
    """The norm of x [..., D] as rows in ``dtype``, in int8, or both."""
    width = x.shape[-1]
    outputs = RowOutputs.make(x.numel() // width, width, dtype, int8, x.device)
    norm(x, weight, eps, outputs).run()
    return outputs


def add_rms_norm_rows(
    residual: torch.Tensor,
    branch: Branch,
    weight: torch.Tensor | None,
    eps: float,
    dtype: torch.dtype | None,
    *,
    int8: bool,
    in_place: bool = False,
) -> tuple[torch.Tensor, RowOutputs]:
    """residual float32 [R, D] + branch, and its norm: the sum and the rows of the norm."""
    total = residual if in_place else torch.empty_like(residual)
    rows, width = residual.shape
    outputs = RowOutputs.make(rows, width, dtype, int8, residual.device)
    norm(residual, weight, eps, outputs, branch, total).run()
    return total, outputs


def gated_rms_norm_rows(
    x: torch.Tensor,
    weight: torch.Tensor,
    gate: torch.Tensor,
    eps: float,
    dtype: torch.dtype | None,
    *,
    int8: bool,
) -> RowOutputs:
    """The norm over the last dimension of x [R, H, D], times silu of gate [R, H * D]."""
    rows, heads, dim = x.shape
    outputs = RowOutputs.make(rows, heads * dim, dtype, int8, x.device)
    gated_norm(x, weight, gate, eps, outputs).run()
    return outputs


def norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    outputs: RowOutputs,
    branch: Branch | None = None,
    total: torch.Tensor | None = None,
) -> Launch:
    """Rows of x [..., D] with one stride, or of [A, B, D] with two."""
    view, inner = _two_strides(x)
    width = x.shape[-1]
    rows = x.numel() // width
    columns = max(GROUP if outputs.int8 is not None else 1, _power_of_two(width))
    block = max(1, TILE // columns)
    added = branch or Branch(x)
    return Launch(
        norm_kernel,
        (-(-rows // block),),
        {
            "x_ptr": view,
            "weight_ptr": view if weight is None else weight,
            "branch_ptr": added.rows,
            "branch_weight_ptr": view if added.weight is None else added.weight,
            "sum_ptr": view if total is None else total,
            **outputs.arguments,
            "rows": rows,
            "inner": inner,
            "width": width,
            "outer_stride": view.stride(0),
            "inner_stride": view.stride(1),
            "branch_row": added.rows.stride(0),
            "eps": eps,
            "branch_eps": added.eps or 0.0,
        },
        {
            "ROWS": block,
            "COLUMNS": columns,
            "WEIGHT": weight is not None,
            "BRANCH": branch is not None,
            "BRANCH_NORM": added.eps is not None,
            "BRANCH_WEIGHT": added.weight is not None,
            **outputs.constants,
        },
        min(16, max(1, block * columns // 512)),
    )


def gated_norm(
    x: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor, eps: float, outputs: RowOutputs
) -> Launch:
    """x contiguous [R, H, D], D a power of two; gate with a row stride."""
    rows, heads, dim = x.shape
    some = max(1, TILE // dim)
    return Launch(
        gated_norm_kernel,
        (rows, -(-heads // some)),
        {
            "x_ptr": x,
            "weight_ptr": weight,
            "gate_ptr": gate,
            **outputs.arguments,
            "heads": heads,
            "gate_row": gate.stride(0),
            "eps": eps,
        },
        {"HEADS": some, "DIM": dim, **outputs.constants},
    )


def _two_strides(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """x as [A, B, D] without a copy where its strides allow, and B."""
    if x.stride(-1) != 1 or x.dim() > 3:
        x = x.contiguous()
    flat = x.reshape(-1, 1, x.shape[-1]) if x.dim() != 3 else x
    return flat, flat.shape[1]


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
