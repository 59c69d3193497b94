"""Matrices times up to 64 float16 rows on tensor cores, with both operands on their way ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from kinfolk_kernels.launch import Launch
from kinfolk_kernels.linear.gemm_f16_kernel import gemm_f16_kernel
from kinfolk_kernels.linear.prepare import F16Rows
from kinfolk_kernels.linear.segments import Segments, counters
from kinfolk_kernels.planes import Planes

MAX_F16_ROWS = 64
"""Most rows that a program's sums have room for in its registers."""

PAIR_COLUMNS = 128
"""Columns that a program multiplies at a time."""

ROWS_OF_WARP = 32
"""Rows of a matrix that a warp computes."""

MULTIPROCESSORS = 132
"""Those of a large device. The order of sums depends on the parts that a matrix is divided into, so
it is this number for every device."""

WARPGROUP_CAPABILITY = 9
"""The major compute capability whose tensor cores read weights from registers and x from shared
memory."""

REGISTERS = 65536
"""Those of a multiprocessor."""

LEAST_PAIRS = 4
"""Least pairs of groups of a program: filling its stages and leaving its sums take as long."""


@dataclass(frozen=True, slots=True)
class F16Tile:
    """The work of a program: ``share`` pairs of groups, which may continue from one tile of
    32 * ``warps`` rows into the next. A tile counts as ``span`` pairs, of which the last ones may
    lie beyond the columns.

    The words of ``stages`` pairs are in shared memory at a time. With warpgroups, registers are
    held down so that a multiprocessor runs ``resident`` programs at a time.
    """

    share: int
    span: int
    warps: int = 4
    stages: int = 3
    resident: int = 3

    @property
    def registers(self) -> int:
        return min(255, REGISTERS // (32 * self.warps * self.resident) // 8 * 8)


def gemm_f16(
    matrices: Sequence[Planes],
    x: F16Rows,
    outs: Sequence[torch.Tensor],
    tile: F16Tile | None = None,
    *,
    asm: bool = True,
    warpgroups: bool | None = None,
) -> Launch:
    """The launch that computes outs[i] [M, N_i] = x W_i^T, M <= 64, for up to four matrices of K
    columns. ``warpgroups``: whether the device's tensor cores multiply for four warps at a time;
    ``None`` asks the device."""
    rows, device = outs[0].shape[0], outs[0].device
    tile = tile or tile_for(matrices, rows)
    segments = Segments.make(
        matrices, outs, lambda p: -(-_tiles(p, tile.warps) * tile.span // tile.share)
    )
    if warpgroups is None:
        warpgroups = _has_warpgroups(device)
    room = max(16, 1 << (rows - 1).bit_length())
    parts = 2 * segments.programs * room * ROWS_OF_WARP * tile.warps
    return Launch(
        gemm_f16_kernel,
        (segments.programs,),
        {
            **segments.arguments,
            "x_ptr": x.numbers,
            "table_ptr": _table(device),
            "factor_ptr": x.factor,
            "part_ptr": torch.empty(parts, device=device),
            "done_ptr": counters(device, segments.programs),
            "rows": rows,
            "share": tile.share,
            "span": tile.span,
        },
        {
            **segments.constants,
            "K": matrices[0].columns,
            "M": room,
            "WARPS": tile.warps,
            "STAGES": tile.stages,
            "ASM": asm,
        },
        warps=tile.warps,
        registers=tile.registers if warpgroups else None,
        early=False,
    )


def tile_for(
    matrices: Sequence[Planes], rows: int, warps: int = 4, stages: int = 3, resident: int = 0
) -> F16Tile:
    """The tile for the shapes of the matrices and for ``rows`` rows of x; ``resident`` 0 is as many
    programs as shared memory has room for."""
    # Measured for 64 rows: two programs with three stages are faster than three with two.
    resident = resident or (3 if rows <= 32 else 2)
    programs = MULTIPROCESSORS * resident
    pairs = -(-matrices[0].columns // PAIR_COLUMNS)
    tiles = [_tiles(planes, warps) for planes in matrices]
    share = max(min(LEAST_PAIRS, pairs), sum(tiles) * pairs // programs)
    while sum(-(-count * pairs // share) for count in tiles) > programs:
        share += 1
    parts = -(-pairs // share)
    span = pairs
    if parts * sum(tiles) <= programs:
        # A program works on one tile only: tiles are divided into parts of nearly equal length.
        share = -(-pairs // parts)
        span = parts * share
    return F16Tile(share, span, warps, stages, resident)


def _tiles(planes: Planes, warps: int) -> int:
    return -(-planes.rows // (ROWS_OF_WARP * warps))


_TABLES: dict[torch.device, torch.Tensor] = {}


def _table(device: torch.device) -> torch.Tensor:
    """int32 [9]: for an even and for an odd pair, the shift of each of four lanes to the bits above
    its nibbles; the bits of 1024 in float16, twice.

    The assembler moves a constant that it knows to a register anew for every use, an eighth of all
    instructions, so it is not to know this one.
    """
    table = _TABLES.get(device)
    if table is None:
        table = torch.arange(9, dtype=torch.int32, device=device) // 2 * 2
        table[8] = 0x64006400
        _TABLES[device] = table
    return table


@cache
def _has_warpgroups(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device)[0] == WARPGROUP_CAPABILITY
