"""Root-mean-square normalisation on the GPU, alone and fused with the operations around it.

A row is summed by one program, in a layout that depends only on its width, so its result does not
depend on the number of rows. The computation is in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kinfolk_kernels.device import refuses_device
from kinfolk_kernels.int8_rows import GROUP_NUMBERS
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.rms_norm.branch import Branch
from kinfolk_kernels.rms_norm.kernels import gated_norm_kernel, gated_row_kernel, norm_kernel
from kinfolk_kernels.rms_norm.op import (
    AddRMSNormArguments,
    GatedRMSNormArguments,
    RMSNormArguments,
)
from kinfolk_kernels.row_forms import worth_int8, worth_mma
from kinfolk_kernels.row_outputs import ROW_TILE_NUMBERS, WIDE_ROWS, RowOutputs
from kinfolk_kernels.stored_kind import FLOATS
from kinfolk_kernels.verdict import YES, Verdict, no

MAX_ROW_NUMBERS = 16384
"""Numbers in the widest row."""

LONGEST_HEAD = 1024
"""Numbers in the widest head of a gated norm."""

NORM_TILE_NUMBERS = 512
"""Numbers of a tile for rows of up to ``MOST_TILES`` tiles; wider rows have larger tiles."""

MOST_TILES = 8

MOST_NORMS = 3
"""Most norms of one sum in a launch."""

MOST_PROGRAMS = 132
"""Up to this many programs of a launch, the tiles of a row are divided among programs. Each program
then reads the whole row, but writes less of it. With more than a large device has multiprocessors,
they only read the same rows again."""

CROWDS = range(41, 512)
"""The numbers of programs that begin in order. A program of a matrix product takes all registers of
a multiprocessor; the first one to end leaves room for five programs of a norm, and if they could
begin early, all would crowd on the first few multiprocessors that are free."""

NARROW_TILES = 4
"""Rows of up to so many tiles have a program for each tile also in ``CROWDS``. Rows with more tiles
have fewer programs, which begin early: 1 to 2 % of a step with 16 rows (``benchmarks/NOTES.md``).
"""


def supports(arguments: RMSNormArguments) -> Verdict:
    return _supports(arguments.device, (arguments.weight,), arguments.dtype)


def rms_norm(arguments: RMSNormArguments, x: torch.Tensor) -> torch.Tensor:
    """See :class:`RMSNormArguments`. Rows are also stored in the form that the products that follow
    are likely to read."""
    weight, eps, dtype = arguments.weight, arguments.eps, arguments.dtype
    rows = rms_norm_rows(x, weight, eps, dtype, int8=worth_int8(x), mma=worth_mma(x))
    return rows.marked(x.shape)


def supports_add(arguments: AddRMSNormArguments) -> Verdict:
    weights = arguments.weights
    if len(weights) > MOST_NORMS:
        return no(f"{len(weights)} norms of one sum, more than {MOST_NORMS}")
    return _supports(arguments.device, weights, arguments.branch_dtype, *arguments.dtypes)


def add_rms_norm(
    arguments: AddRMSNormArguments, residual: torch.Tensor, branch: Branch
) -> tuple[torch.Tensor, ...]:
    """See :class:`AddRMSNormArguments`."""
    weights, eps, dtypes = arguments.weights, arguments.eps, arguments.dtypes
    int8, mma = worth_int8(residual), worth_mma(residual)
    total, norms = add_rms_norm_rows(residual, branch, weights, eps, dtypes, int8=int8, mma=mma)
    return total, *(rows.marked(residual.shape) for rows in norms)


def supports_gated(arguments: GatedRMSNormArguments) -> Verdict:
    dim = arguments.weight.shape[0]
    if dim & (dim - 1) or not GROUP_NUMBERS <= dim <= LONGEST_HEAD:
        sizes = f"{GROUP_NUMBERS} to {LONGEST_HEAD}"
        return no(f"heads of {dim} numbers, not a power of two from {sizes}")
    return _supports(arguments.device, (arguments.weight,), arguments.dtype)


def gated_rms_norm(
    arguments: GatedRMSNormArguments, x: torch.Tensor, gate: torch.Tensor
) -> torch.Tensor:
    """See :class:`GatedRMSNormArguments`."""
    weight, eps, dtype = arguments.weight, arguments.eps, arguments.dtype
    int8, mma = worth_int8(gate), worth_mma(gate)
    return gated_rms_norm_rows(x, weight, gate, eps, dtype, int8=int8, mma=mma).marked(gate.shape)


def _supports(
    device: torch.device, weights: Sequence[torch.Tensor | None], *dtypes: torch.dtype
) -> Verdict:
    reason = refuses_device(norm_kernel, device, *dtypes)
    if reason:
        return no(reason)
    for weight in weights:
        if weight is not None and weight.shape[0] > MAX_ROW_NUMBERS:
            return no(f"a row has {weight.shape[0]} numbers, more than {MAX_ROW_NUMBERS}")
    for dtype in dtypes:
        if dtype not in FLOATS:
            return no(f"rows of {dtype}")
    return YES


def rms_norm_rows(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    dtype: torch.dtype | None,
    *,
    int8: bool,
    mma: bool = False,
) -> RowOutputs:
    """The norm of x [..., D] as rows in ``dtype``, in int8 or ``MmaRows``, or both."""
    width = x.shape[-1]
    outputs = RowOutputs.make(x.numel() // width, width, dtype, int8, x.device, mma)
    norm(x, (weight,), eps, (outputs,)).run()
    return outputs


def add_rms_norm_rows(
    residual: torch.Tensor,
    branch: Branch,
    weights: Sequence[torch.Tensor | None],
    eps: float,
    dtypes: Sequence[torch.dtype | None],
    *,
    int8: bool,
    mma: bool = False,
) -> tuple[torch.Tensor, list[RowOutputs]]:
    """residual float32 [R, D] + branch: the sum, and the rows of each of its norms. Either every
    norm has a dtype, or none has."""
    total = torch.empty_like(residual, memory_format=torch.contiguous_format)
    rows, width = residual.shape
    device = residual.device
    outputs = [RowOutputs.make(rows, width, dtype, int8, device, mma) for dtype in dtypes]
    norm(residual, weights, eps, outputs, branch, total).run()
    return total, outputs


def gated_rms_norm_rows(
    x: torch.Tensor,
    weight: torch.Tensor,
    gate: torch.Tensor,
    eps: float,
    dtype: torch.dtype | None,
    *,
    int8: bool,
    mma: bool = False,
) -> RowOutputs:
    """The norm over the last dimension of x [R, H, D], times silu of gate [R, H * D]."""
    rows, heads, dim = x.shape
    outputs = RowOutputs.make(rows, heads * dim, dtype, int8, x.device, mma)
    gated_norm(x, weight, gate, eps, outputs).run()
    return outputs


def norm(
    x: torch.Tensor,
    weights: Sequence[torch.Tensor | None],
    eps: float,
    outputs: Sequence[RowOutputs],
    branch: Branch | None = None,
    total: torch.Tensor | None = None,
) -> Launch:
    """The launch that norms the rows of x [..., D] with one stride, or of x [A, B, D] with two
    strides; one of ``outputs`` for each weight."""
    view, inner = _two_strides(x)
    width = x.shape[-1]
    rows = x.numel() // width
    tile = RowTile.of(width)
    mma_tiles = outputs[0].mma_tiles if outputs else 0
    # The factor of a row of ``MmaRows`` is of all of it.
    own = tile.tiles if mma_tiles else tiles_of_program(rows, tile.tiles)
    added = branch or Branch(x)
    first, second = added.parts[0], added.parts[-1]
    first_rows, second_rows = _with_unit_stride(first.rows), _with_unit_stride(second.rows)
    grid = (-(-rows // tile.rows), -(-tile.tiles // own))
    # Arguments of absent norms are replaced by a tensor that exists.
    nothing, missing = RowOutputs(view, None), MOST_NORMS - len(weights)
    targets = [*(made.arguments for made in outputs), *[nothing.arguments] * missing]
    own_weights = [*weights, *[None] * missing]
    return Launch(
        norm_kernel,
        grid,
        {
            "x_ptr": view,
            **{f"weight{i}_ptr": view if w is None else w for i, w in enumerate(own_weights)},
            "branch_ptr": first_rows,
            "branch_weight_ptr": view if added.weight is None else added.weight,
            "second_ptr": second_rows,
            "first_weight_ptr": view if first.weight is None else first.weight,
            "second_weight_ptr": view if second.weight is None else second.weight,
            "factor_ptr": view if added.factor is None else added.factor,
            "sum_ptr": view if total is None else total,
            **{
                f"{name}{i}_ptr": target[f"{name}_ptr"]
                for i, target in enumerate(targets)
                for name in ("out", "words", "scale")
            },
            "scale_step": targets[0]["scale_step"],
            "rows": rows,
            "inner": inner,
            "width": width,
            "outer_stride": view.stride(0),
            "inner_stride": view.stride(1),
            "branch_row": first_rows.stride(0),
            "second_row": second_rows.stride(0),
            "eps": eps,
            "branch_eps": added.eps or 0.0,
            "first_eps": first.eps,
            "second_eps": second.eps,
        },
        {
            "NORMS": len(weights),
            **{f"WEIGHT{i}": weight is not None for i, weight in enumerate(own_weights)},
            "BRANCH": branch is not None,
            "BRANCH_NORM": added.eps is not None,
            "BRANCH_WEIGHT": added.weight is not None,
            "PARTS": isinstance(added.rows, tuple),
            "FIRST_WEIGHT": first.weight is not None,
            "SECOND_WEIGHT": second.weight is not None,
            "FACTOR": added.factor is not None,
            **(outputs[0] if outputs else nothing).constants,
            "MMA": mma_tiles,
            "ROWS": tile.rows,
            "GROUPS": tile.groups,
            "TILES": tile.tiles,
            "OWN": own,
        },
        tile.warps,
        early=grid[0] * grid[1] not in CROWDS,
    )


def tiles_of_program(rows: int, tiles: int) -> int:
    """Tiles of a row that a program of a launch for ``rows`` rows writes."""
    if tiles * rows > MOST_PROGRAMS:
        return tiles
    early = (CROWDS.start - 1) // rows
    if tiles > NARROW_TILES and tiles * rows in CROWDS and early:
        return -(-tiles // early)
    return 1


@dataclass(frozen=True, slots=True)
class RowTile:
    """``rows`` rows of ``tiles`` tiles of ``groups`` groups of 64 numbers, one int8 word a lane."""

    rows: int
    groups: int
    tiles: int
    warps: int

    @staticmethod
    def of(width: int) -> RowTile:
        """The tile for a width, and nothing else, so that every row is summed in the same order."""
        most = (
            NORM_TILE_NUMBERS
            // GROUP_NUMBERS
            * _power_of_two(-(-width // (MOST_TILES * NORM_TILE_NUMBERS)))
        )
        groups = min(most, _power_of_two(-(-width // GROUP_NUMBERS)))
        rows = max(1, NORM_TILE_NUMBERS // GROUP_NUMBERS // groups)
        tiles = -(-width // (groups * GROUP_NUMBERS))
        return RowTile(rows, groups, tiles, rows * groups * GROUP_NUMBERS // (4 * 32))


def gated_norm(
    x: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor, eps: float, outputs: RowOutputs
) -> Launch:
    """The launch for x [R, H, D], D a power of two, and gate [R, H * D]."""
    x, gate = x.contiguous(), _with_unit_stride(gate)
    rows, heads, dim = x.shape
    arguments = {
        "x_ptr": x,
        "weight_ptr": weight,
        "gate_ptr": gate,
        **outputs.arguments,
        "width": heads * dim,
        "gate_row": gate.stride(0),
        "eps": eps,
    }
    if outputs.mma is not None:
        return _gated_rows(arguments, rows, heads, dim, outputs)
    some = max(1, NORM_TILE_NUMBERS // dim)
    wide = rows >= WIDE_ROWS and outputs.int8 is None
    return Launch(
        gated_norm_kernel,
        (rows, -(-heads // some)),
        arguments,
        {"DIM": dim, **outputs.constants, "HEADS": some, "WIDE": wide},
        some * dim // (4 * 32),
    )


def _gated_rows(
    arguments: dict[str, Any], rows: int, heads: int, dim: int, outputs: RowOutputs
) -> Launch:
    """The launch of ``gated_norm`` for rows with one factor each."""
    parts = max(1, MOST_PROGRAMS // rows)
    some = min(max(1, ROW_TILE_NUMBERS // dim), _power_of_two(-(-heads // parts)))
    tiles = -(-heads // some)
    own = -(-tiles // parts)
    given = {name: value for name, value in arguments.items() if name != "scale_step"}
    return Launch(
        gated_row_kernel,
        (rows, -(-tiles // own)),
        given,
        {
            "DIM": dim,
            "VALUES": outputs.values is not None,
            "HEADS": some,
            "TILES": tiles,
            "OWN": own,
            "MMA": outputs.mma_tiles,
        },
        max(1, some * dim // (4 * 32)),
    )


def _two_strides(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    """x as [A, B, D], without a copy if its strides allow it, and B."""
    x = x.contiguous() if x.dim() > 3 else _with_unit_stride(x)
    flat = x.reshape(-1, 1, x.shape[-1]) if x.dim() != 3 else x
    return flat, flat.shape[1]


def _with_unit_stride(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
