"""The results of a plugin format's functions are checked for type and shape."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kinfolk.descriptors import QuantFormat
from kinfolk.errors import PluginError
from kinfolk.quant.codec import dequantize, quantize
from kinfolk.quant.tensor import QuantTensor

SOURCE = "plugin 'p' (dist 1)"
WHO = "quant format 'OWN' of plugin 'p' (dist 1): toy_format:"
BYTES = np.zeros((2, 3, 10), np.uint8)
NUMBERS = np.zeros((2, 3, 32), np.float32)


@pytest.fixture
def own(monkeypatch):
    """``own(read, write)``: a format whose blocks of 16 numbers take 5 bytes."""

    def make(read=len, write=len, source=SOURCE):
        module = SimpleNamespace(read=read, write=write)
        monkeypatch.setitem(sys.modules, "toy_format", module)
        return QuantFormat("OWN", 200, 16, 5, "toy_format:read", "toy_format:write", source)

    return make


def test_what_fits_is_handed_on(own):
    format_ = own(lambda data: NUMBERS + 7, lambda numbers: BYTES + 7)
    assert (dequantize(BYTES, format_) == 7).all()
    assert (quantize(NUMBERS, format_) == 7).all()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, "None, which is no numpy array"),
        (torch.zeros(2, 3, 32), "an object of type Tensor, which is no numpy array"),
        (NUMBERS.astype(np.float64), "which is float64 [2, 3, 32]; it must be float32 [2, 3, 32]"),
        (NUMBERS[:1], "which is float32 [1, 3, 32]; it must be float32 [2, 3, 32]"),
        (NUMBERS.reshape(-1), "which is float32 [192]; it must be float32 [2, 3, 32]"),
    ],
)
def test_other_numbers_are_an_error_that_names_the_format(own, answer, said):
    with pytest.raises(PluginError) as caught:
        dequantize(BYTES, own(lambda data: answer))
    assert str(caught.value).startswith(f"{WHO}read returned ")
    assert said in str(caught.value)


def test_other_bytes_are_an_error_that_names_the_format(own):
    with pytest.raises(
        PluginError, match=r"which is int64 \[2, 3, 10\]; it must be uint8 \[2, 3, 10"
    ):
        quantize(NUMBERS, own(write=lambda numbers: BYTES.astype(np.int64)))


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(3)])
def test_a_format_that_fails_is_named(own, error):
    def fails(array):
        raise error

    format_ = own(fails, fails)
    with pytest.raises(PluginError, match="toy_format:read failed"):
        dequantize(BYTES, format_)
    with pytest.raises(PluginError, match="toy_format:write failed"):
        quantize(NUMBERS, format_)
    tensor = QuantTensor.from_bytes(BYTES, format_, (2, 3, 32))
    with pytest.raises(
        PluginError, match=r"^quant format 'OWN' of plugin 'p' \(dist 1\): toy_form"
    ):
        tensor.dequantize()


def test_a_mistake_of_the_core_is_none_of_a_plugin(own):
    def fails(array):
        raise KeyError("x")

    with pytest.raises(KeyError):
        dequantize(BYTES, own(fails, source=""))
