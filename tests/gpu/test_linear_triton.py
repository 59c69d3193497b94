"""Quantised products on the GPU, with the widths of released models."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from kinfolk.weights import packer
from kinfolk_kernels import launch
from kinfolk_kernels.cuda_source import LEAST_MULTIPROCESSORS
from kinfolk_kernels.embedding.op import EmbeddingArguments
from kinfolk_kernels.embedding.triton_backend import embedding
from kinfolk_kernels.int8_rows import MAX_INT8_ROWS, quantize
from kinfolk_kernels.int8_rows import dequantize as numbers_of
from kinfolk_kernels.linear import segments
from kinfolk_kernels.linear import triton_backend as kernels
from kinfolk_kernels.linear.dequantize import dequantize
from kinfolk_kernels.linear.gemm_f16 import F16Tile, gemm_f16
from kinfolk_kernels.linear.gemm_int8 import PAIR, Int8Tile, gemm_int8
from kinfolk_kernels.linear.gemm_int8 import tile_for as int8_tile_for
from kinfolk_kernels.linear.gemm_mma import gemm_mma
from kinfolk_kernels.linear.gemm_mma import tile_for as mma_tile_for
from kinfolk_kernels.linear.gemm_mma_int8 import UNIT_COLUMNS, fitted, gemm_mma_int8
from kinfolk_kernels.linear.gemm_mma_int8 import tile_for as mma_int8_tile_for
from kinfolk_kernels.linear.gemm_mma_int8 import tile_in as mma_int8_tile_in
from kinfolk_kernels.linear.gemv import gemv, warps_for
from kinfolk_kernels.linear.prepare import f16_rows, mma_rows
from kinfolk_kernels.packing import pack
from kinfolk_kernels.planes import LAYOUTS, unpack
from kinfolk_kernels.row_forms import most_int8_rows

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

# Relative L2 of a row. Sums of exact products in float32; sixteen bits of what minima meet; eleven
# bits of scale, minimum, weight and x; eight bits of each number.
SUMS, MINIMA, HALF, BF16 = 5e-6, 2e-5, 2e-3, 6e-3

SHAPES = {
    "Q4_K": (1032, 5120),
    "Q5_K": (5120, 6144),
    "Q6_K": (257, 17408),
    "Q8_0": (48, 5120),
    "Q5_0": (2816, 704),
    "Q4_0": (64, 2112),
    "IQ4_XS": (1000, 2816),
}
EVERY = pytest.mark.parametrize("name", SHAPES)


@pytest.fixture
def matrix(random_planes, on_gpu):
    """``matrix(format)``: planes of the format's shape on the device, and its numbers."""

    def make(name, **options):
        planes = on_gpu(random_planes(name, *SHAPES[name], **options))
        return planes, unpack(planes).double()

    return make


def product(x, weight):
    return kernels.products(x, (weight,))[0]


def error(found, expected):
    return float(((found.double() - expected).norm(dim=1) / expected.norm(dim=1)).max())


@EVERY
@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_few_rows_by_any_number_of_warps(matrix, numbers, poisoned, name, rows):
    planes, exact = matrix(name)
    x = quantize(numbers(rows, planes.columns).cuda())
    expected = numbers_of(x).double() @ exact.T
    for warps in (1, 4, None):
        with poisoned():
            out = torch.empty(rows, planes.rows, device="cuda")
        gemv([planes], x, [out], warps).run()
        assert error(out, expected) <= SUMS


@EVERY
def test_the_place_of_a_row_changes_no_bit_of_its_dot_products(matrix, numbers, name):
    planes, _ = matrix(name)
    x = numbers(1, planes.columns).cuda().expand(4, -1).contiguous()
    out = torch.empty(4, planes.rows, device="cuda")
    gemv([planes], quantize(x), [out]).run()
    assert torch.equal(out, out[:1].expand(4, -1))


@EVERY
@pytest.mark.parametrize("rows", [2, 13, 32])
def test_int8_rows_on_the_matrix_unit(matrix, numbers, poisoned, name, rows):
    planes, exact = matrix(name)
    x = quantize(numbers(rows, planes.columns).cuda())
    expected = numbers_of(x).double() @ exact.T
    pairs = -(-planes.columns // PAIR)
    whole = Int8Tile(3, -(-pairs // 3) * 3)
    others = (whole, Int8Tile(pairs + 7, pairs)) if rows == 13 else ()
    for tile in (*others, None):
        with poisoned():
            out = torch.empty(rows, planes.rows, device="cuda")
        gemm_int8([planes], x, [out], tile).run()
        assert error(out, expected) <= MINIMA


@EVERY
@pytest.mark.parametrize("rows", [2, 8, 9, 16, 17, 24, 25, 32])
def test_int8_rows_by_copies(matrix, numbers, poisoned, name, rows):
    planes, exact = matrix(name)
    x = quantize(numbers(rows, planes.columns).cuda())
    expected = numbers_of(x).double() @ exact.T
    default = mma_int8_tile_for([planes], -(-rows // 8))
    units = -(-planes.columns // UNIT_COLUMNS)
    # Shares of every length around a tile's, so that tiles have one part, two and many.
    shares = {2, units // 3, units - 1, units, units + 3} - {0}
    more = [replace(default, share=share, span=units) for share in shares]
    others = []
    for some in ((3, 4, 2), (6, 2, 4), (2, 1, 3)):
        with suppress(ValueError):  # no room
            others.append(fitted(mma_int8_tile_in([planes], *some), [planes], -(-rows // 8)))
    for tile in (*(more if rows in (9, 25) else ()), *others, None):
        for _ in range(2):  # the second time, parts are those that the first one left
            with poisoned():
                out = torch.empty(rows, planes.rows, device="cuda")
            gemm_mma_int8([planes], x, [out], tile).run()
            assert error(out, expected) <= MINIMA, tile


@EVERY
@pytest.mark.parametrize("rows", [1, 8, 9, 16, 17, 24, 32, 33, 64, 65, 96, 97, 128, 129, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_rows_by_warps_on_their_own_and_in_groups(matrix, numbers, poisoned, name, rows, dtype):
    planes, exact = matrix(name)
    x = numbers(rows, planes.columns).cuda().bfloat16()
    expected = x.double() @ exact.T
    made = mma_rows(x)
    default = mma_tile_for([planes], made.tiles, made.parts)
    pairs = -(-planes.columns // PAIR)
    # Shares of every length around a tile's, so that tiles have one part, two and many. Programs of
    # warpgroups that share a tile wait for one another, so they must run at the same time.
    least = -(-pairs // LEAST_MULTIPROCESSORS) if made.warpgroups else default.column_warps
    shares = {least, pairs // 3, pairs - 1, pairs, pairs + 3}
    more = [replace(default, share=share, span=pairs) for share in shares if share > 0]
    for tile in (*(more if rows in (24, 64, 128) else ()), None):
        for _ in range(2):  # the second time, parts are those that the first one left
            with poisoned():
                out = torch.empty(rows, planes.rows, device="cuda", dtype=dtype)
            gemm_mma([planes], made, [out], tile).run()
            assert error(out, expected) <= (HALF if dtype == torch.float32 else BF16), tile


@EVERY
@pytest.mark.parametrize("rows", [1, 16, 17, 24, 32, 33, 48, 64])
def test_up_to_64_rows_from_shared_memory(matrix, numbers, poisoned, name, rows):
    planes, exact = matrix(name)
    x = numbers(rows, planes.columns).cuda().bfloat16()
    expected = x.double() @ exact.T
    pairs, stages = -(-planes.columns // PAIR), 3 if rows <= 32 else 2
    more = [F16Tile(3, -(-pairs // 3) * 3, stages=stages), F16Tile(5, pairs, stages=stages)]
    if name in ("Q4_K", "Q6_K"):
        more.append(F16Tile(pairs + 7, pairs, 8, 2, 1))
    for tile in (*(more if rows in (24, 64) else ()), None):
        with poisoned():
            out = torch.empty(rows, planes.rows, device="cuda")
        gemm_f16([planes], f16_rows(x), [out], tile).run()
        assert error(out, expected) <= HALF


def kernel_and_tile(matrices, rows):
    """What multiplies int8 rows with these matrices."""
    if rows <= kernels.MAX_DOT_ROWS:
        return gemv, warps_for(matrices)
    largest = matrices[segments.by_size(matrices)[0]]
    if rows > MAX_INT8_ROWS or rows in kernels.ROWS_BY_COPIES.get(largest.format, ()):
        return gemm_mma_int8, mma_int8_tile_for(matrices, -(-rows // 8))
    return gemm_int8, int8_tile_for(matrices)


@pytest.mark.parametrize("rows", [1, 2, 4, 16, 24, 64, 100, 200])
def test_matrices_that_read_the_same_rows(random_planes, numbers, on_gpu, rows):
    parts = (("Q5_K", 10240), ("Q4_K", 6144), ("Q8_0", 48), ("Q8_0", 48), ("Q6_K", 130))
    weights = [on_gpu(random_planes(n, size, 5120, seed=i)) for i, (n, size) in enumerate(parts)]
    x = numbers(rows, 5120).cuda().bfloat16()
    found = kernels.products(x, weights)
    few = rows <= most_int8_rows(5120, x.device)
    seen = numbers_of(quantize(x)) if few else x
    for y, planes in zip(found, weights, strict=True):
        assert y.dtype == torch.bfloat16
        assert error(y, seen.double() @ unpack(planes).double().T) <= BF16
        # More rows of matrices in a launch may mean fewer parts of each, which sum otherwise.
        together = weights[: segments.MAX_MATRICES] if planes is not weights[-1] else [planes]
        if few and kernel_and_tile([planes], rows) == kernel_and_tile(together, rows):
            assert torch.equal(y, product(x, planes))


@EVERY
def test_slices_of_numbers_are_the_definitions_bit_for_bit(matrix, name):
    planes, exact = matrix(name)
    out = torch.full(planes.shape, torch.nan, device="cuda")
    dequantize([planes], [out]).run()
    assert torch.equal(out, exact.float())
    half = torch.full((33, planes.columns), torch.nan, device="cuda", dtype=torch.bfloat16)
    dequantize([planes[8:41]], [half]).run()
    assert torch.equal(half, exact[8:41].bfloat16())
    tokens = torch.tensor([planes.rows - 1, 0, 5, 5, 2], device="cuda")
    assert torch.equal(embedding(EmbeddingArguments(planes), tokens), exact[tokens].float())


def test_twenty_runs_and_any_company_give_the_same_bits(matrix, numbers):
    """Of as many tiles of eight rows."""
    planes, _ = matrix("Q5_K")
    x = numbers(16, planes.columns).cuda()
    _, tile = kernel_and_tile([planes], 16)
    assert tile.share < tile.span
    first, few, one = (product(x[:count], planes) for count in (16, 8, 1))
    for _ in range(20):
        assert torch.equal(product(x, planes), first)
        assert torch.equal(product(x[:8], planes), few)
        assert torch.equal(product(x[:1], planes), one)
    assert torch.equal(product(x[2:6], planes), few[2:6])
    assert torch.equal(product(x[3:12], planes), first[3:12])


@pytest.mark.parametrize(("rows", "fewer"), [(24, 17), (32, 25), (64, 33)])
def test_twenty_runs_and_any_company_of_more_rows_give_the_same_bits(matrix, numbers, rows, fewer):
    """Of as many tiles of eight int8 rows, or of any company as float16."""
    for name in ("Q4_K", "Q5_K", "Q6_K"):
        planes, _ = matrix(name)
        x = numbers(rows, planes.columns).cuda()
        first = product(x, planes)
        for _ in range(20):
            assert torch.equal(product(x, planes), first)
        assert torch.equal(product(x[:fewer], planes), first[:fewer])
        last = torch.arange(rows - 1, rows - fewer - 1, -1, device="cuda")
        assert torch.equal(product(x[last], planes), first[last])


def test_a_graph_replays_the_bits_of_the_launches(matrix, numbers):
    planes, _ = matrix("Q5_K")
    for rows in (1, 16, 24, 64, 100):
        x = numbers(rows, planes.columns).cuda().bfloat16()
        expected = product(x, planes)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = product(x, planes)
        for _ in range(3):
            found.fill_(torch.nan)
            graph.replay()
            assert torch.equal(found, expected)


@pytest.mark.parametrize("rows", [1, 12, 20, 40])
def test_launches_that_start_early_give_the_same_bits(
    random_planes, numbers, on_gpu, rows, monkeypatch
):
    """Each matrix reads what the launch before it has written."""
    chain = [on_gpu(random_planes("Q4_K", 2048, 2048, seed=i)) for i in range(12)]
    first = numbers(rows, 2048).cuda()

    def run():
        x = first
        for planes in chain:
            x = product(x, planes) * 1e-2
        return x

    with monkeypatch.context() as patched:
        patched.setattr(launch, "overlaps", lambda device: False)
        usual = run()
    assert usual.isfinite().all()
    for _ in range(10):
        assert torch.equal(run(), usual)


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_of_any_size(random_planes, on_gpu, name):
    planes = on_gpu(random_planes(name, 64, 512, activations="f16"))
    for size in (1e-6, 1e6):
        x = torch.linspace(-1, 1, 16 * 512, device="cuda").view(16, 512) * size
        expected = x.double() @ unpack(planes).double().T
        assert error(product(x, planes), expected) <= HALF


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_tensor_is_repacked_on_the_device_as_on_the_host(monkeypatch, name):
    layout = LAYOUTS[name]
    generator = torch.Generator().manual_seed(0)
    shape = (41, 1024 // layout.block * layout.nbytes)
    raw = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    monkeypatch.setattr(packer, "PIECE", 5000)
    found = packer.Packer(torch.device("cuda"), "int8").pack(raw.numpy(), name, (41, 1024))
    for plane, expected in zip(found.tensors, pack(name, raw, 1024).tensors, strict=True):
        assert plane.is_cuda
        assert torch.equal(plane.cpu(), expected)
