"""Records of experts: where planes are, and the stacks that are views of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from kinfolk.experts import records
from kinfolk.experts.store import halves
from kinfolk.quant.formats import QuantFormats
from kinfolk.quant.tensor import QuantTensor
from kinfolk.registry import Registry
from kinfolk.settings import load_settings
from kinfolk_kernels.packing import pack

pytestmark = pytest.mark.cpu

EXPERTS, ROWS, COLUMNS = 3, 8, 256


@pytest.fixture(scope="module")
def formats():
    registry = Registry.discover(load_settings())
    return QuantFormats([provided.value for provided in registry.quant_formats])


def stored(formats, kind):
    numbers = np.random.default_rng(len(kind)).standard_normal((EXPERTS * ROWS, COLUMNS))
    if kind in ("Q8_0", "Q4_0", "Q5_0"):
        return torch.from_numpy(quantize(numbers.astype(np.float32), GGMLQuantizationType[kind]))
    # Random blocks whose scales, two float16 at either end of a block, are finite.
    size = formats.of_type(GGMLQuantizationType[kind]).bytes
    raw = torch.randint(0, 256, (EXPERTS * ROWS, size), dtype=torch.uint8)
    one = torch.tensor([0, 0x3C, 0, 0x3C], dtype=torch.uint8)
    raw[:, :4], raw[:, -4:] = one, one
    return raw


def fill(layout, name, source):
    """Records whose stack ``name`` is that of ``source``; other bytes are 0xFF."""
    made = torch.full((EXPERTS, layout.nbytes), 0xFF, dtype=torch.uint8)
    for plane, part in zip(layout.planes(name, made), source, strict=True):
        plane.copy_(part.reshape(plane.shape))
    return made


def test_planes_and_records_begin_at_multiples_of_256():
    layout = records.RecordLayout.of(
        {
            "gate": records.numbers(torch.float32, (3, 5)),
            "up": records.planes("Q5_K", (ROWS, COLUMNS), "int8"),
            "down": records.numbers(torch.bfloat16, (7, 11)),
        }
    )
    starts = [start for starts in layout.offsets.values() for start in starts]
    assert all(start % 256 == 0 for start in starts)
    assert layout.nbytes % 256 == 0
    assert starts == sorted(set(starts))
    ends = [
        start + plane[0].numel() * plane.element_size()
        for name in layout.matrices
        for start, plane in zip(
            layout.offsets[name],
            layout.planes(name, torch.zeros(1, layout.nbytes, dtype=torch.uint8)),
            strict=True,
        )
    ]
    assert all(end <= start for end, start in zip(ends, [*starts[1:], layout.nbytes], strict=True))


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_0", "Q5_0", "IQ4_XS"])
def test_a_stack_of_planes_in_records_has_the_numbers_of_the_file(formats, kind):
    raw = stored(formats, kind)
    layout = records.RecordLayout.of(
        {
            "other": records.numbers(torch.float32, (1, 1)),
            "m": records.planes(kind, (ROWS, COLUMNS), "int8"),
        }
    )
    whole = pack(kind, raw, COLUMNS).stacked(EXPERTS)
    made = fill(layout, "m", whole.tensors)
    stack = layout.stack("m", made)
    assert stack.q.stride(0) * 4 == layout.nbytes
    for expert in range(EXPERTS):
        assert torch.equal(stack[expert].dequantize(), whole[expert].dequantize())
    for ours, theirs in zip(halves(stack), halves(whole), strict=True):
        assert torch.equal(ours[1].dequantize(), theirs[1].dequantize())


def test_stacks_of_blocks_and_of_numbers_are_views(formats):
    raw = stored(formats, "Q8_0").view(EXPERTS, ROWS, -1)
    format_ = formats.of_type(GGMLQuantizationType.Q8_0)
    layout = records.RecordLayout.of(
        {
            "blocks": records.blocks(format_, (ROWS, COLUMNS)),
            "numbers": records.numbers(torch.float16, (2, 3)),
        }
    )
    made = fill(layout, "blocks", [raw])
    expected = QuantTensor(raw, format_, (EXPERTS, ROWS, COLUMNS))
    assert torch.equal(layout.stack("blocks", made)[2].dequantize(), expected[2].dequantize())
    numbers = layout.stack("numbers", made)
    numbers[1] = 5
    assert (layout.stack("numbers", made)[1] == 5).all()
    assert torch.equal(layout.stack("blocks", made).data, raw)


def test_there_may_be_no_bay():
    layout = records.RecordLayout.of({"m": records.planes("Q4_K", (ROWS, COLUMNS), "int8")})
    stack = layout.stack("m", torch.zeros(0, layout.nbytes, dtype=torch.uint8))
    assert stack.shape == (0, ROWS, COLUMNS)
