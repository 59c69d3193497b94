"""The kernels around attention compiled for other devices: they fit, and no loop spills.

Shapes and types are those of released models; lengths do not matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

from kinfolk_kernels.aot import compile_aot
from kinfolk_kernels.codecs import FORMATS, Coded, Stored
from kinfolk_kernels.launch import Launch
from kinfolk_kernels.paged_attention.epilogue import Epilogue
from kinfolk_kernels.paged_attention.launches import Call
from kinfolk_kernels.paged_attention.tiles import SMALL_SHARED, Device
from kinfolk_kernels.qk_rope_write.head_norm import HeadNorm
from kinfolk_kernels.qk_rope_write.op import QKRopeWriteArguments
from kinfolk_kernels.qk_rope_write.triton_backend import launch as prepare
from kinfolk_kernels.row_layout import LaunchTraits, RowLayout
from kinfolk_kernels.rows import CHUNK_POSITIONS
from kinfolk_kernels.stored_kind import StoredKind

LARGE = Device(132, 227 * 1024)
SMALL = Device(82, SMALL_SHARED)
DEVICES = {86: SMALL, 89: SMALL, 90: LARGE, 120: SMALL}


@dataclass(frozen=True)
class Shape:
    """``counts``: rows of sequences, so that every height of tile is needed."""

    heads: int
    kv_heads: int
    dim: int
    counts: tuple[int, ...]
    window: int | None = None
    formats: tuple[str, str] = ("plain", "plain")
    dtype: torch.dtype = torch.bfloat16
    rotated: bool = False


SHAPES = {
    "24 of 256": Shape(24, 4, 256, (1, 8)),
    "16 of 512": Shape(16, 2, 512, (1, 4)),
    "64 of 128 in a window": Shape(64, 8, 128, (1, 16), 512),
    "256, coded": Shape(24, 4, 256, (1, 8), None, ("q8_0", "q4_0"), rotated=True),
    "128, coded": Shape(64, 8, 128, (6,), 512, ("q8_0", "q8_0")),
    "float32": Shape(8, 8, 64, (1,), dtype=torch.float32),
}
# Devices of 99 KB allocate registers differently; one of each kind compiles everything.
CASES = [("24 of 256", 86), ("64 of 128 in a window", 86), ("256, coded", 86), ("16 of 512", 120)]
OTHERS = [(name, 86) for name in ("16 of 512", "128, coded", "float32")]
OTHERS += [("24 of 256", 120), ("128, coded", 120), ("256, coded", 89), ("24 of 256", 90)]


def section(format: str, shape: Shape) -> Stored:
    """A section of one of several layers of two blocks."""

    def plane(width: int, dtype: torch.dtype) -> torch.Tensor:
        used = shape.kv_heads * CHUNK_POSITIONS * width
        whole = torch.zeros(2, 4 * used, dtype=dtype)
        return whole[:, :used].view(2, shape.kv_heads, CHUNK_POSITIONS, width)

    if format == "plain":
        return plane(shape.dim, shape.dtype)
    codes = plane(shape.dim // FORMATS[format], torch.uint8)
    return Coded(format, codes, plane(shape.dim // 32, torch.float16), shape.rotated)


def launches(shape: Shape, device: Device) -> Iterator[Launch]:
    """Every kernel that a layer of this shape may need."""
    index = torch.zeros(4, dtype=torch.int32)
    traits = LaunchTraits(True, 16, True, shape.counts)
    rows = SimpleNamespace(
        positions=index.long(),
        limit=index.long(),
        ancestors=index.long(),
        arena_row=index.long(),
        write_row=index.long()[None],
        sequence_of_row=index.long(),
        layout=RowLayout(index[None], index, index, index, index, index, traits),
    )
    table = SimpleNamespace(blocks=index[None], chunks=index[None], length=index)
    wide = torch.zeros(65, shape.heads, 2 * shape.dim, dtype=shape.dtype)
    q, gate = wide[..., : shape.dim], wide[..., shape.dim :]
    pools = (section(shape.formats[0], shape), section(shape.formats[1], shape))
    epilogue = Epilogue(
        gate, torch.zeros(65, shape.heads, 1), shape.dtype, int8=True, activation="softplus"
    )
    call = Call(q, pools, pools, rows, table, shape.window, 0.1, epilogue, device)
    yield from call.launches(call.outputs())
    norm = HeadNorm(torch.zeros(shape.dim), 1e-6)
    key = torch.zeros(65, shape.kv_heads, shape.dim)
    tables = torch.zeros(2, 16, shape.dim // 8)
    keys, values = (StoredKind.of(pool) for pool in pools)
    arguments = QKRopeWriteArguments(
        (norm, norm, None), tuple(tables), keys, values, True, 0, q.dtype, q.device
    )
    for some in (q[:1], q):
        out = torch.empty_like(some)
        yield prepare(arguments, some, key, key, pools, pools, rows, out)


@pytest.mark.parametrize(("name", "capability"), CASES)
def test_everything_fits(name, capability):
    check_fits(name, capability)


@pytest.mark.long
@pytest.mark.parametrize(("name", "capability"), OTHERS)
def test_everything_fits_elsewhere(name, capability):
    check_fits(name, capability)


def check_fits(name, capability):
    device = DEVICES[capability]
    names = set()
    for launch in launches(SHAPES[name], device):
        usage = compile_aot(launch, capability)
        what = (launch.kernel.fn.__name__, launch.constants, usage)
        assert usage.shared <= device.shared, what
        assert usage.loop_spills == 0, what
        names.add(launch.kernel.fn.__name__)
    usual = {"prefill_kernel", "decode_kernel", "combine_kernel", "qk_rope_write_kernel"}
    assert names == (usual | {"numbers_kernel"} if "coded" in name else usual)


def test_what_does_not_fit_is_noticed():
    """The check can fail: a tile twice as wide as the table says has too few registers."""
    decode, *_ = (one for one in launches(SHAPES["128, coded"], SMALL) if "short" in one.arguments)
    wide = replace(decode, constants={**decode.constants, "BLOCK_N": 64})
    usual, usage = (compile_aot(one, 86) for one in (decode, wide))
    assert usage.shared > usual.shared
    assert usage.loop_spills > usual.loop_spills
