"""Taking rows out of the token table."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from kinfolk.quant.formats import QuantFormats
from kinfolk.quant.tensor import QuantTensor
from kinfolk_kernels.embedding.op import EmbeddingArguments, embedding


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_come_out_unchanged_as_float32(numbers, dtype):
    table = numbers(37, 19).to(dtype)
    tokens = torch.tensor([36, 0, 5, 5, 17])
    picked = torch.nn.functional.one_hot(tokens, 37).double() @ table.double()
    found = embedding(EmbeddingArguments(table), tokens)
    assert found.dtype == torch.float32
    assert torch.equal(found.double(), picked)


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0"])
def test_packed_rows_are_dequantised_exactly(numbers, name):
    kind = gguf.GGMLQuantizationType[name]
    packed = gguf.quants.quantize(numbers(23, 64).numpy(), kind)
    table = QuantTensor.from_bytes(packed, QuantFormats().named(name), (23, 64))
    tokens = torch.tensor([22, 3, 3, 0])
    expected = gguf.quants.dequantize(packed, kind)[tokens.numpy()]
    assert np.array_equal(embedding(EmbeddingArguments(table), tokens).numpy(), expected)


def test_no_tokens_give_no_rows(numbers):
    assert embedding(EmbeddingArguments(numbers(5, 7)), torch.arange(0)).shape == (0, 7)


def test_other_rows_are_not_read():
    table = torch.full((9, 4), torch.nan)
    table[4] = torch.arange(4)
    assert torch.equal(embedding(EmbeddingArguments(table), torch.tensor([4, 4])), table[[4, 4]])
