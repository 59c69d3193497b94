"""Few int8 rows by warps that copy their own weights: on the CPU against float64, and compiled.

On a GPU its numbers are compared in ``tests/gpu/test_linear_triton.py``.
"""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import pytest
import torch
from cuda_on_cpu import run_on_cpu
from shares import assert_covered_once

from kinfolk_kernels import row_forms
from kinfolk_kernels.cuda_source import MAX_SHARED, CudaLaunch
from kinfolk_kernels.int8_rows import Int8Rows, dequantize, quantize, with_int8
from kinfolk_kernels.linear import triton_backend as backend
from kinfolk_kernels.linear.gemm_mma_int8 import (
    MmaInt8Tile,
    fitted,
    gemm_mma_int8,
    stage_bytes,
    tile_for,
    tile_in,
    weight_stages,
)
from kinfolk_kernels.missing_words import MISSING, missing_words
from kinfolk_kernels.packing import empty
from kinfolk_kernels.planes import LAYOUTS, unpack

META = torch.device("meta")
CPU = torch.device("cpu")
ALL_REGISTERS = 65536

# Whole numbers until a scale comes in; what minima are multiplied with has sixteen bits.
BOUND = 1e-5

emulated = pytest.mark.interpreter


def multiply(matrices, x, tile, seed=1):
    outs = [torch.full((x.shape[0], planes.rows), torch.nan) for planes in matrices]
    run_on_cpu(gemm_mma_int8(matrices, quantize(x), outs, tile), seed)
    assert (missing_words(CPU, 1) == MISSING).all()
    return outs


def error(found, planes, x):
    expected = dequantize(quantize(x)).double() @ unpack(planes).double().T
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())


LARGE = ("Q4_K", "Q5_K", "Q6_K", "IQ4_XS")
SMALL = ("Q8_0", "Q4_0", "Q5_0")


@emulated
@pytest.mark.parametrize(
    ("names", "columns", "batch", "tile"),
    [
        (LARGE, 768, 11, MmaInt8Tile(2, 3, 1, 2)),
        (SMALL, 704, 3, MmaInt8Tile(2, 3, 2, 1)),
        (("Q4_K",), 3072, 16, MmaInt8Tile(2, 12, 1, 2, x_stages=4)),
        (("Q4_K",), 1280, 9, MmaInt8Tile(3, 6, 2, 3, x_stages=2)),
        (LARGE, 512, 24, MmaInt8Tile(1, 2, 1, 2)),
        (SMALL, 704, 21, MmaInt8Tile(2, 3, 1, 3)),
        (("Q5_K", "Q6_K"), 768, 32, MmaInt8Tile(2, 3, 2, 2)),
        (("Q8_0", "Q4_K"), 512, 27, MmaInt8Tile(1, 2, 1, 1)),
    ],
    ids=[
        "blocks of 256",
        "blocks of 32 and no whole number of units",
        "more parts of a tile than are asked for at once",
        "three warps of different columns",
        "three tiles of rows",
        "three, of which the last is not full",
        "four tiles of rows",
        "four, of which the last is not full, by one warp",
    ],
)
def test_products_equal_float64(random_planes, numbers, names, columns, batch, tile):
    """Shares begin inside tiles, and rows are no multiple of four."""
    shapes = zip(names, (70, 36, 33, 13), strict=False)
    matrices = [random_planes(name, rows, columns, seed=rows) for name, rows in shapes]
    x = numbers(batch, columns)
    for planes, out in zip(matrices, multiply(matrices, x, tile), strict=True):
        assert error(out, planes, x) <= BOUND, planes.format


@emulated
@pytest.mark.parametrize("seed", range(2))
def test_warps_wait_for_rows_that_others_copy(random_planes, numbers, seed):
    """A share of several tiles, whose rounds use each stage many times, in an order by chance."""
    planes, x = random_planes("Q4_K", 140, 1024, seed=1), numbers(8, 1024)
    assert error(*multiply([planes], x, MmaInt8Tile(12, 4, 2, 1), seed), planes, x) <= BOUND


@emulated
def test_the_table_selects_it_by_rows_and_format(monkeypatch, random_planes, numbers):
    monkeypatch.setattr(backend, "unavailable", lambda device: "")
    monkeypatch.setattr(CudaLaunch, "run", run_on_cpu)
    for other in ("gemv", "gemm_int8"):
        monkeypatch.setattr(backend, other, lambda *operands, **names: SimpleNamespace(run=int))
    planes = random_planes("Q8_0", 13, 704, seed=2)

    def written(rows):
        x = numbers(rows, 704)
        (found,) = backend.products(with_int8(x, quantize(x)), [planes])
        return error(found, planes, x) <= BOUND

    assert not written(3)
    monkeypatch.setattr(backend, "ROWS_BY_COPIES", {"Q8_0": range(3, 9), "Q4_K": range(9, 17)})
    assert written(3)
    assert not written(2)
    assert not written(9)
    monkeypatch.setattr(row_forms, "unavailable", lambda device: "")
    monkeypatch.setattr(row_forms, "NARROW_WIDTH", 703)
    assert written(17)
    assert written(32)


def launch_of(rows, *formats, columns=5120, out=4096):
    matrices = [empty(name, out, columns, META) for name in formats]
    outs = [torch.empty(rows, m.rows, dtype=torch.bfloat16, device=META) for m in matrices]
    return gemm_mma_int8(matrices, Int8Rows.make(rows, columns, META), outs)


LAUNCHES = {
    "delta net's inputs": (16, ("Q5_K", "Q4_K", "Q8_0", "Q8_0"), 5120),
    "attention's inputs": (16, ("Q4_K", "Q6_K"), 5120),
    "down": (16, ("Q6_K",), 17408),
    "no whole number of units, a table": (8, ("Q5_0", "Q4_0"), 704),
    "delta net's inputs, 24 rows": (24, ("Q5_K", "Q4_K", "Q8_0", "Q8_0"), 5120),
    "down, 24 rows": (24, ("Q6_K",), 17408),
    "delta net's inputs, 32 rows": (32, ("Q5_K", "Q4_K", "Q8_0", "Q8_0"), 5120),
    "attention's inputs, 32 rows": (32, ("Q4_K", "Q6_K"), 5120),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_it_compiles_without_spills_in_loops(name):
    from kinfolk_kernels.aot import usage_of

    rows, formats, columns = LAUNCHES[name]
    launch = launch_of(rows, *formats, columns=columns)
    usage = usage_of(launch.source.compiled(), launch.shared)
    assert launch.shared <= MAX_SHARED
    assert usage.registers * launch.threads <= ALL_REGISTERS
    assert usage.loop_spills == 0


@pytest.mark.parametrize("columns", [64, 192, 512, 2048, 5120, 17408])
@pytest.mark.parametrize("rows", [(4,), (48, 48), (5120,), (17408, 17408), (10240, 6144, 48, 48)])
def test_shares_cover_every_unit_once_and_fill_the_device_once(columns, rows):
    matrices = [empty("Q8_0", n, columns, META) for n in rows]
    for row_tiles in (1, 2, 3, 4):
        assert_covered_once(matrices, tile_for(matrices, row_tiles), -(-columns // 256))


@pytest.mark.parametrize("names", [*product(LAYOUTS, repeat=2)], ids="-".join)
def test_two_stages_of_all_formats_of_a_launch_fit_in_shared_memory(names):
    for rows, out in product((2, 9, 16, 24, 32), (4096, 1 << 19)):
        launch = launch_of(rows, *names, columns=512, out=out)
        assert launch.shared <= MAX_SHARED
        weight_bytes = dict(launch.source.defines)["WEIGHT_BYTES"]
        assert weight_bytes >= 2 * max(map(stage_bytes, names))


def test_fewer_stages_of_x_make_room_or_the_tile_is_refused():
    matrices = [empty("Q6_K", 512, 512, META)]
    usual = tile_in(matrices, 4, 3, 4)
    assert fitted(usual, matrices, 1) == usual
    fewer = fitted(usual, matrices, 3)
    assert fewer.x_stages < usual.x_stages
    assert weight_stages(matrices, fewer, 3) == 2
    with pytest.raises(ValueError, match=r"no room for .* with 4 tiles of rows"):
        fitted(usual, matrices, 4)
