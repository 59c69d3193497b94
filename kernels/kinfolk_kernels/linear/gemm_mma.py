"""Matrices times float16 rows on the tensor cores of sm_90, in parts of up to 128 rows.

The kernel is CUDA C++: a warp copies its own weights, and multiplies what it has unpacked in
registers, alone or, with more than 32 rows, together with three others. In Triton (``gemm_f16``),
copies make all warps of a program wait for each other, and so do products of warpgroups.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from kinfolk_kernels.cuda_source import (
    LEAST_MULTIPROCESSORS,
    MAX_SHARED,
    CudaLaunch,
    CudaSource,
)
from kinfolk_kernels.linear.gemm_f16 import LEAST_PAIRS, MULTIPROCESSORS, PAIR_COLUMNS, ROWS_OF_WARP
from kinfolk_kernels.linear.segments import MAX_MATRICES, NOTHING, by_size
from kinfolk_kernels.missing_words import missing_words
from kinfolk_kernels.mma_rows import WARP_ROW_TILES, MmaRows
from kinfolk_kernels.planes import EIGHT_BITS, LAYOUTS, Planes

SOURCE = Path(__file__).with_suffix(".cu")

Y_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
MAX_STAGES = 3
WARPGROUP_STAGES = 6
PRODUCERS = 4
"""Warps that only copy, beside those of warpgroups."""

ROUND_CYCLES = {8: 1600, 4: 1050}
"""What a pair of groups takes a program, by its warps that multiply. This and the next two were
measured with 64 rows on an H200 (``benchmarks/NOTES.md``); 128 rows take more of all."""
EXCHANGE_CYCLES = 800
"""What it takes for each of these warps to leave the sums of a tile that programs share."""
PIECE_CYCLES = 90
"""What adding them takes for each of these programs."""
MOST_PIECES = 8
"""Most programs that a tile is divided among evenly."""
X_STAGES = 3
WARPGROUP_X_STAGES = 4
"""One more: products of a stage may run while the next one is used."""
HEADER_BYTES = 256
"""Shared memory for barriers."""

THOUSAND = 0x64006400
"""The bits of float16 1024, twice."""

LEAVES_FIRST = 0x12F0000000000000
"""The policy that ``createpolicy.fractional.L2::evict_first`` makes. Weights, which are read once a
step, leave the second-level cache before the code of the next launches does: in a step it is read
behind all that is on its way from memory, so a launch began up to 5 us later without this."""


@dataclass(frozen=True, slots=True)
class MmaTile:
    """The work of a program: ``share`` pairs of groups, which may continue from one tile of
    32 * ``row_warps`` rows into the next. A tile counts as ``span`` pairs, of which the last ones
    may lie beyond the columns. ``column_warps`` warps share the pairs of the same rows. A warp has
    at most ``stages`` stages of weights, and fewer if memory is short."""

    share: int
    span: int
    row_warps: int
    column_warps: int
    stages: int = MAX_STAGES

    @property
    def warps(self) -> int:
        return self.row_warps * self.column_warps


class Described(ctypes.Structure):
    """What a kernel is told of a matrix. Without planes: of one that is not there, whose programs
    end where those before it do."""

    @classmethod
    def of(cls, planes: Planes, out: torch.Tensor, end: int) -> Described:
        """``end``: of its programs."""
        raise NotImplementedError


class Addresses(Described):
    """A matrix whose planes are read by their addresses."""

    _fields_ = (
        ("q", ctypes.c_void_p),
        ("high", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("supers", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("rows", ctypes.c_int),
        ("end", ctypes.c_int),
    )

    @classmethod
    def of(cls, planes: Planes, out: torch.Tensor, end: int) -> Addresses:
        parts = (planes.q, planes.high, planes.scales, planes.supers, out)
        return cls(*map(_address, parts), planes.rows, end)


class _Work(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("factor", ctypes.c_void_p),
        ("part", ctypes.c_void_p),
        ("x_bytes", ctypes.c_uint64),
        ("first_row", ctypes.c_int),
        ("rows", ctypes.c_int),
        ("share", ctypes.c_int),
        ("span", ctypes.c_int),
        ("constant", ctypes.c_uint),
        ("policy", ctypes.c_uint64),
    )


def gemm_mma(
    matrices: Sequence[Planes],
    x: MmaRows,
    outs: Sequence[torch.Tensor],
    tile: MmaTile | None = None,
) -> CudaLaunch:
    """The launch that computes outs[i] [M, N_i] = x W_i^T for up to four matrices of K columns."""
    tile = tile or tile_for(matrices, x.tiles, x.parts)
    weight_bytes = _weight_bytes(matrices, tile, x)
    producers = PRODUCERS if x.warpgroups else 0
    defines = {
        "WARPGROUPS": int(x.warpgroups),
        "PRODUCERS": producers,
        "X_STAGES": _x_stages(x),
        "WEIGHT_BYTES": weight_bytes,
    }
    return launch_of(
        SOURCE,
        matrices,
        outs,
        tile,
        (x.numbers, x.factor),
        x.tiles,
        defines,
        _other_bytes(tile, x) + tile.warps * weight_bytes,
        THOUSAND,
        sums=2 if x.warpgroups else 1,
        producers=producers,
        parts=x.parts,
    )


def launch_of(
    source: Path,
    matrices: Sequence[Planes],
    outs: Sequence[torch.Tensor],
    tile: MmaTile,
    x: tuple[torch.Tensor, torch.Tensor],
    row_tiles: int,
    defines: dict[str, int],
    shared: int,
    constant: int,
    sums: int = 1,
    producers: int = 0,
    parts: int = 1,
    described: type[Described] = Addresses,
    maps: Sequence[ctypes.Structure] = (),
) -> CudaLaunch:
    """The launch of a kernel that ends with ``gemm_segments.cu``, whose file has its name.

    ``x``: rows, in ``parts`` of ``row_tiles`` tiles of eight, and their factors or scales;
    ``sums``: of tiles that a program may leave; ``producers``: warps that only copy; ``defines``:
    the macros that only this kernel has; ``constant``: a number that its compiler is not to know,
    or it would set a register to it again and again; ``maps``: more arguments.
    """
    rows, device = outs[0].shape[0], outs[0].device
    order = by_size(matrices)
    places, formats, end = [], [], 0
    for i in order:
        planes = matrices[i]
        end += -(-tiles_of(planes, tile.row_warps) * tile.span // tile.share)
        formats.append(LAYOUTS[planes.format].number)
        places.append(described.of(planes, outs[i], end))
    unused = MAX_MATRICES - len(order)
    formats += [NOTHING] * unused
    places += [described(end=end) for _ in range(unused)]
    programs = parts * end
    left = programs * sums * ROWS_OF_WARP * tile.row_warps * 8 * row_tiles
    part = missing_words(device, left)
    x_bytes = x[0].numel() * x[0].element_size() // parts
    shares = (x_bytes, 0, rows, tile.share, tile.span, constant, LEAVES_FIRST)
    work = _Work(*map(_address, (*x, part)), *shares)
    macros = {
        "ROW_TILES": row_tiles,
        "ROW_WARPS": tile.row_warps,
        "COLUMN_WARPS": tile.column_warps,
        **defines,
        "COLUMNS": matrices[0].columns,
        "Y_TYPE": Y_TYPES[outs[0].dtype],
        **{f"F{i}": number for i, number in enumerate(formats)},
    }
    return CudaLaunch(
        CudaSource.make(source, source.stem, macros),
        programs,
        32 * (tile.warps + producers),
        shared,
        (*places, work, *maps),
        device,
        (*matrices, *outs, *x, part),
    )


def tile_for(matrices: Sequence[Planes], row_tiles: int, parts: int = 1) -> MmaTile:
    """The tile for the shapes of the matrices and for ``parts`` parts of ``row_tiles`` tiles of
    eight rows of x."""
    if row_tiles > WARP_ROW_TILES[-1]:
        return _warpgroup_tile(matrices, parts)
    arrangement = (4, 4) if row_tiles <= 2 else (6, 2)
    return tile_of(matrices, *arrangement, PAIR_COLUMNS, LEAST_PAIRS, parts)


def _warpgroup_tile(matrices: Sequence[Planes], parts: int) -> MmaTile:
    """The cheapest tile of one warpgroup or two. Tiles are divided as ``tile_of`` does it, or each
    evenly, so that a program works on one tile only."""
    units, most = -(-matrices[0].columns // PAIR_COLUMNS), MULTIPROCESSORS // parts
    found = []
    for row_warps in ROUND_CYCLES:
        found.append(tile_of(matrices, row_warps, 1, PAIR_COLUMNS, LEAST_PAIRS, parts))
        tiles = sum(tiles_of(planes, row_warps) for planes in matrices)
        for pieces in range(1, min(most // tiles, MOST_PIECES) + 1):
            share = -(-units // pieces)
            found.append(MmaTile(share, -(-units // share) * share, row_warps, 1))
    return replace(min(found, key=_cycles), stages=WARPGROUP_STAGES)


def _cycles(tile: MmaTile) -> int:
    """What a program of warpgroups takes, about."""
    own = tile.share * ROUND_CYCLES[tile.row_warps]
    if tile.span == tile.share:
        return own
    exchange = EXCHANGE_CYCLES + PIECE_CYCLES * -(-tile.span // tile.share)
    tiles = 1 if tile.span % tile.share == 0 else 2
    return own + tiles * tile.row_warps * exchange


def tile_of(
    matrices: Sequence[Planes],
    row_warps: int,
    column_warps: int,
    width: int,
    least: int,
    parts: int = 1,
) -> MmaTile:
    """The tile of so many warps, whose shares have units of ``width`` columns, at least ``least``
    of them if a tile has as many. Each of the ``parts`` of x has its share of the device. So few
    programs share a tile that the smallest device can run them at the same time."""
    most = MULTIPROCESSORS // parts
    units = -(-matrices[0].columns // width)
    least = max(least, 2 * units // LEAST_MULTIPROCESSORS)
    tiles = [tiles_of(planes, row_warps) for planes in matrices]

    def rounds(count: int) -> int:
        """The next multiple of the units that a program processes at a time."""
        return -(-count // column_warps) * column_warps

    share = rounds(max(min(least, units), sum(tiles) * units // most))
    while sum(-(-count * units // share) for count in tiles) > most:
        share += column_warps
    pieces, span = -(-units // share), units
    if pieces * sum(tiles) <= most:
        # A program works on one tile only: tiles are divided into pieces of nearly equal length.
        share = rounds(-(-units // pieces))
        span = -(-units // share) * share
    return MmaTile(share, span, row_warps, column_warps)


def tiles_of(planes: Planes, row_warps: int) -> int:
    """Tiles of a matrix."""
    return -(-planes.rows // (ROWS_OF_WARP * row_warps))


def _x_stages(x: MmaRows) -> int:
    return WARPGROUP_X_STAGES if x.warpgroups else X_STAGES


def _weight_bytes(matrices: Sequence[Planes], tile: MmaTile, x: MmaRows) -> int:
    """Shared memory of a warp for weights: stages of a pair of groups, in the largest format."""
    stage = max(stage_bytes(planes.format) for planes in matrices)
    room = (MAX_SHARED - _other_bytes(tile, x)) // tile.warps
    return min(tile.stages, room // stage) * stage


def stage_bytes(format: str) -> int:
    """Bytes of a pair of groups of 32 rows: ``STAGE`` of the kernels."""
    layout = LAYOUTS[format]
    codes = 4096 if layout.number == EIGHT_BITS else 2048
    high = 1024 if layout.bits else 0
    return codes + high + 256 + (0 if layout.block == 32 else 128)


def _other_bytes(tile: MmaTile, x: MmaRows) -> int:
    """Shared memory for barriers, x, and the sums that column warps leave."""
    stages = _x_stages(x) * tile.column_warps * x.tiles * 2048
    sums = (tile.column_warps - 1) * tile.row_warps * x.tiles * 1024
    return HEADER_BYTES + stages + sums


def _address(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
