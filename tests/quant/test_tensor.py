"""Tensors that stay quantised: rows, copies and numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kinfolk.descriptors import resolve
from kinfolk.quant.formats import QuantFormats
from kinfolk.quant.tensor import QuantTensor, row_chunks

Q4_K = QuantFormats().named("Q4_K")
SHAPE = (3, 5, 512)


@pytest.fixture
def stored(rng):
    numbers = rng.standard_normal(SHAPE).astype(np.float32)
    return resolve(Q4_K.quantize)(numbers).reshape(15, -1)


@pytest.fixture
def numbers(stored):
    return torch.from_numpy(resolve(Q4_K.dequantize)(stored).reshape(SHAPE))


@pytest.fixture
def tensor(stored):
    stored.flags.writeable = False
    return QuantTensor.from_bytes(stored, Q4_K, SHAPE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_numbers_are_the_references_in_any_type(tensor, numbers, dtype):
    assert torch.equal(tensor.dequantize(dtype), numbers.to(dtype))


def test_bytes_are_not_copied(stored, tensor):
    assert tensor.data.data_ptr() == stored.ctypes.data
    assert tensor.nbytes == stored.nbytes
    assert (tensor.shape, len(tensor), tensor.device.type) == (SHAPE, 3, "cpu")


def test_leading_rows_are_views(tensor, numbers):
    assert torch.equal(tensor[1].dequantize(), numbers[1])
    assert torch.equal(tensor[1:].dequantize(), numbers[1:])
    assert torch.equal(tensor[1][2:4].dequantize(), numbers[1][2:4])
    assert tensor[1].data.data_ptr() == tensor.data[1].data_ptr()


def test_rows_are_selected_by_number(tensor, numbers):
    rows = torch.tensor([2, 0, 2])
    assert torch.equal(tensor.select(rows).dequantize(), numbers[rows])


def test_wrong_sizes_are_refused(tensor):
    with pytest.raises(ValueError, match=r"a Q4_K tensor of shape \(3, 5, 256\)"):
        QuantTensor(tensor.data, Q4_K, (3, 5, 256))
    with pytest.raises(ValueError, match="has uint8 data"):
        QuantTensor(tensor.data.to(torch.int32), Q4_K, SHAPE)


@pytest.mark.parametrize("shape", [(7,), (3, 7), (2, 3, 7), (5, 1 << 19), (3, 1 << 21)])
def test_chunks_cover_every_row_once_and_are_bounded(shape):
    chunks = row_chunks(shape)
    rows = int(np.prod(shape[:-1]))
    assert [row for start, stop in chunks for row in range(start, stop)] == list(range(rows))
    assert all((stop - start) * shape[-1] <= max(1 << 20, shape[-1]) for start, stop in chunks)
