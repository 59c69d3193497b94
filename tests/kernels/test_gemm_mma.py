"""The CUDA C++ of ``gemm_mma`` compiles for sm_90, in every format, and keeps to its registers.

It is also run on the CPU, but for tiles that more than two programs share: there, programs run one
after the other (``tests/gpu/test_linear_triton.py`` has those).
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from cuda_on_cpu import run_on_cpu
from products_under_way import assert_products_run_beside_others
from shares import assert_covered_once

from kinfolk_kernels.cuda_source import (
    LEAST_MULTIPROCESSORS,
    MAX_SHARED,
    CudaSource,
    unavailable,
)
from kinfolk_kernels.linear import triton_backend as backend
from kinfolk_kernels.linear.gemm_mma import SOURCE, MmaTile, gemm_mma, tile_for
from kinfolk_kernels.linear.prepare import mma_rows
from kinfolk_kernels.missing_words import MISSING, missing_words
from kinfolk_kernels.mma_rows import WARP_ROW_TILES, WARPGROUP_ROW_TILES, MmaRows, with_mma
from kinfolk_kernels.packing import empty
from kinfolk_kernels.planes import LAYOUTS

META = torch.device("meta")
ALL_REGISTERS = 65536

# Eleven bits of scale, minimum, weight and x.
HALF = 2e-3


def launch_of(rows, *formats, columns=5120, out=4096):
    matrices = [empty(name, out, columns, META) for name in formats]
    outs = [torch.empty(rows, m.rows, dtype=torch.bfloat16, device=META) for m in matrices]
    return gemm_mma(matrices, MmaRows.make(rows, columns, META), outs)


def assert_products(matrices, x, outs):
    for planes, out in zip(matrices, outs, strict=True):
        expected = x.double() @ planes.dequantize().double().T
        error = (out - expected).norm(dim=1) / expected.norm(dim=1)
        assert float(error.max()) <= HALF, planes.format


LAUNCHES = {
    "delta net's inputs": (24, ("Q5_K", "Q4_K", "Q8_0", "Q8_0"), 5120),
    "gate and up": (32, ("Q4_K", "Q4_K"), 5120),
    "down": (64, ("Q6_K",), 17408),
    "a last group without a partner": (33, ("Q5_0", "Q4_0"), 704),
    "many rows of a delta net's inputs": (128, ("Q5_K", "Q4_K", "Q8_0", "Q8_0"), 5120),
    "many rows of a table": (96, ("IQ4_XS", "Q8_0"), 2816),
    "one warpgroup": (64, ("Q5_K",), 6144),
    "many rows by one warpgroup": (128, ("Q8_0", "Q4_K"), 2048),
    "a table": (16, ("IQ4_XS", "Q8_0"), 2816),
    "one row": (1, ("Q4_K",), 5120),
}


@pytest.mark.parametrize("name", LAUNCHES)
def test_the_address_of_a_copy_with_a_policy_is_one_register(name):
    from copy_addresses import assert_addresses_of_one_register

    rows, formats, columns = LAUNCHES[name]
    launch = launch_of(rows, *formats, columns=columns)
    assert_addresses_of_one_register(launch.source.compiled())


@pytest.mark.parametrize("name", LAUNCHES)
def test_it_compiles_without_spills_in_loops(name):
    from kinfolk_kernels.aot import usage_of

    rows, formats, columns = LAUNCHES[name]
    launch = launch_of(rows, *formats, columns=columns)
    code = launch.source.compiled()
    usage = usage_of(code, launch.shared)
    assert launch.shared <= MAX_SHARED
    assert usage.registers * launch.threads <= ALL_REGISTERS
    assert usage.loop_spills == 0
    if rows > 32:
        assert_products_run_beside_others(code, len(set(formats)))


@pytest.mark.interpreter
@pytest.mark.parametrize(
    ("names", "columns", "batch", "tile"),
    [
        (("Q4_K", "Q6_K", "IQ4_XS"), 768, 9, MmaTile(4, 6, 1, 2, 6)),
        (("Q8_0", "Q5_0"), 704, 20, MmaTile(13, 6, 2, 1)),
        (("Q4_K",), 768, 20, MmaTile(2, 6, 1, 2)),
    ],
    ids=["blocks of 256, six stages", "a last group without a partner", "three parts of a tile"],
)
def test_products_of_float16_rows_equal_float64(
    random_planes, numbers, names, columns, batch, tile
):
    shapes = zip(names, (70, 140, 33), strict=False)
    matrices = [random_planes(name, rows, columns, seed=rows) for name, rows in shapes]
    x = numbers(batch, columns).bfloat16().float()
    outs = [torch.full((batch, planes.rows), torch.nan) for planes in matrices]
    run_on_cpu(gemm_mma(matrices, mma_rows(x), outs, tile))
    assert_products(matrices, x, outs)


@pytest.mark.interpreter
@pytest.mark.parametrize(
    ("names", "batch", "tile"),
    [
        (("Q4_K", "Q6_K"), 40, MmaTile(6, 6, 8, 1, 6)),
        (("IQ4_XS",), 90, MmaTile(4, 6, 8, 1)),
        (("Q5_K",), 170, MmaTile(6, 6, 8, 1, 2)),
        (("Q4_0", "Q8_0"), 60, MmaTile(1, 6, 4, 1)),
        (("Q4_K",), 50, MmaTile(4, 6, 4, 1)),
    ],
    ids=["eight tiles of rows", "two of a tile", "two parts of x", "six of a tile", "of two tiles"],
)
def test_products_of_warpgroups_equal_float64(random_planes, numbers, names, batch, tile):
    matrices = [random_planes(name, 140, 768, seed=i) for i, name in enumerate(names)]
    x = numbers(batch, 768).bfloat16().float()
    outs = [torch.full((batch, planes.rows), torch.nan) for planes in matrices]
    run_on_cpu(gemm_mma(matrices, mma_rows(x), outs, tile))
    assert_products(matrices, x, outs)
    assert (missing_words(x.device, 1) == MISSING).all()


@pytest.mark.interpreter
def test_a_row_has_the_same_bits_in_every_part_of_a_launch(random_planes, numbers):
    """Parts of 24 rows instead of the 128 of warpgroups, which need a GPU."""
    matrices = [random_planes(name, n, 768, seed=n) for name, n in (("Q4_K", 140), ("Q6_K", 70))]
    first = numbers(24, 768).bfloat16().float()
    rows = torch.cat([first, first.flip(0)[:20]])
    halves = [mma_rows(part) for part in rows.split(24)]
    both = MmaRows(
        torch.cat([half.numbers for half in halves]), torch.cat([half.factor for half in halves])
    )
    outs = [torch.full((44, planes.rows), torch.nan) for planes in matrices]
    run_on_cpu(gemm_mma(matrices, both, outs, MmaTile(4, 6, 2, 2)))
    assert_products(matrices, rows, outs)
    for out in outs:
        assert torch.equal(out[24:], out[:24].flip(0)[:20])


def test_a_source_that_does_not_compile_names_the_file_and_the_reason():
    source = CudaSource.make(SOURCE, "gemm_mma", {"ROW_TILES": 1})
    with pytest.raises(RuntimeError, match=r"gemm_mma\.cu(.|\n)*identifier \"ROW_WARPS\""):
        source.compiled()


def test_other_devices_say_why_they_do_not_use_it():
    assert "NVIDIA" in unavailable(torch.device("cpu"))


def test_a_part_of_a_device_with_few_multiprocessors_does_not_use_it(monkeypatch):
    few = SimpleNamespace(multi_processor_count=LEAST_MULTIPROCESSORS - 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: few)
    # A device of a number that no other test asks for: answers are kept.
    assert "63 multiprocessors" in unavailable(torch.device("cuda", 90))


@pytest.mark.parametrize("tiles", [*WARP_ROW_TILES, *WARPGROUP_ROW_TILES])
@pytest.mark.parametrize("columns", [64, 192, 512, 2048, 5120, 17408, 53248])
@pytest.mark.parametrize("rows", [(4,), (48, 48), (5120,), (17408, 17408), (10240, 6144, 48, 48)])
def test_shares_cover_every_pair_once_and_fill_the_device_once(tiles, columns, rows):
    matrices = [empty("Q8_0", n, columns, META) for n in rows]
    for parts in (1, 2, 3, 4) if tiles in WARPGROUP_ROW_TILES else (1,):
        tile = tile_for(matrices, tiles, parts)
        assert_covered_once(matrices, tile, -(-columns // 128), parts)


@pytest.mark.parametrize("name", LAYOUTS)
def test_stages_of_every_format_fit_in_shared_memory(name):
    for rows in (1, 16, 24, 32, 48, 96, 128):
        launch = launch_of(rows, name, "Q8_0", columns=512)
        assert launch.shared <= MAX_SHARED
        defines = dict(launch.source.defines)
        assert defines["WEIGHT_BYTES"] >= 2 * 4352


@pytest.mark.parametrize(
    ("rows", "parts", "tiles"),
    [(17, 1, 3), (128, 1, 16), (129, 2, 12), (192, 2, 12), (300, 3, 16), (512, 4, 16)],
)
def test_more_rows_than_a_part_has_are_multiplied_in_parts(rows, parts, tiles):
    operand = MmaRows.make(rows, 5120, META)
    assert (operand.parts, operand.tiles) == (parts, tiles)
    launch = launch_of(rows, "Q4_K", "Q6_K")
    assert dict(launch.source.defines)["ROW_TILES"] == tiles
    assert launch.grid % parts == 0


@pytest.mark.parametrize(
    ("rows", "columns", "parts", "expected"),
    [
        ((17408, 17408), 5120, 1, (8, 42, 40)),
        ((5120,), 17408, 1, (8, 23, 138)),
        ((5120,), 17408, 4, (8, 83, 136)),
        ((5120,), 6144, 1, (4, 16, 48)),
        ((8192, 4096, 32, 32), 2048, 1, (4, 16, 16)),
        ((512, 512), 2048, 1, (4, 2, 16)),
    ],
    ids=["all shared", "pieces", "parts of x", "one warpgroup", "whole tiles", "few rows"],
)
def test_warpgroups_share_tiles_where_that_is_cheaper(rows, columns, parts, expected):
    tile = tile_for([empty("Q4_K", n, columns, META) for n in rows], 8, parts)
    assert (tile.row_warps, tile.share, tile.span) == expected


@pytest.mark.parametrize(
    ("rows", "count", "dequantised"),
    [
        (64, 8, False),
        (65, 63, True),
        (65, 64, False),
        (129, 127, True),
        (300, 191, True),
        (300, 192, False),
        (512, 192, False),
        (513, 4096, True),
    ],
)
def test_many_rows_of_small_matrices_are_multiplied_after_dequantising(
    monkeypatch, rows, count, dequantised
):
    """With limits at 64, 128 and 192 rows of the matrix."""
    monkeypatch.setattr(backend, "unavailable", lambda device: "")
    limits = tuple(64 * count for count in (64, 128, 192, 192))
    monkeypatch.setattr(backend, "LEAST_WEIGHTS", limits)
    asked = []

    def large(matrices, x, *, asm):
        asked.append("dequantised")
        return [torch.empty(len(x), m.rows) for m in matrices]

    def product(matrices, x, outs):
        asked.append("in parts")
        return SimpleNamespace(run=lambda: None)

    monkeypatch.setattr(backend, "gemm_large", large)
    monkeypatch.setattr(backend, "gemm_mma", product)
    monkeypatch.setattr(backend, "mma_rows", lambda x: MmaRows.make(*x.shape, x.device))
    matrices = [empty("Q8_0", count - 4, 64, META), empty("Q8_0", 4, 64, META)]
    backend.products(torch.empty(rows, 64, device=META), matrices)
    assert set(asked) == {"dequantised" if dequantised else "in parts"}


def test_rows_that_were_made_for_the_product_are_not_made_again(monkeypatch):
    monkeypatch.setattr(backend, "unavailable", lambda device: "")
    seen = []

    def product(matrices, x, outs):
        seen.append(x)
        return SimpleNamespace(run=lambda: None)

    monkeypatch.setattr(backend, "gemm_mma", product)
    monkeypatch.setattr(backend, "mma_rows", lambda x: seen.append("made"))
    made = MmaRows.make(17, 128, META)
    x = with_mma(torch.empty(17, 128, device=META), made)
    backend.products(x, [empty("Q8_0", 64, 128, META)])
    assert len(seen) == 1
    assert seen[0] is made
