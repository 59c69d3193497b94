"""Formats are found by type and by name, and an error names a missing one."""

from __future__ import annotations

import logging
from dataclasses import replace

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from kinfolk.descriptors import QuantFormat, resolve
from kinfolk.errors import PluginError, UnsupportedModelError
from kinfolk.gguf.tensor_types import TENSOR_TYPES, TensorType
from kinfolk.quant.formats import BUILTIN_FORMATS, QuantFormats

OWN = QuantFormat("OWN", 200, 16, 10, "plugin:read")


def test_every_builtin_has_the_size_and_functions_it_states():
    names = " ".join(format_.name for format_ in BUILTIN_FORMATS)
    assert names == (
        "F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4"
    )
    for format_ in BUILTIN_FORMATS:
        kind = TENSOR_TYPES[format_.ggml_type]
        assert kind == TensorType(format_.name, format_.block, format_.bytes)
        assert callable(resolve(format_.dequantize))
        assert not format_.quantize or callable(resolve(format_.quantize))


def test_lookup_by_type_and_by_name_in_any_case():
    formats = QuantFormats()
    assert formats.of_type(12) is formats.named("q4_k") is formats.named("Q4_K")
    assert len(formats) == len(list(formats)) == len(BUILTIN_FORMATS)
    with pytest.raises(KeyError):
        formats.named("none")


def test_a_plugin_adds_a_format_and_a_tensor_type():
    formats = QuantFormats([*BUILTIN_FORMATS, OWN])
    assert formats.of_type(200) is OWN
    assert formats.is_native(200)
    assert formats.tensor_types()[200] == TensorType("OWN", 16, 10)
    assert formats.tensor_types()[12] == TENSOR_TYPES[12]


@pytest.mark.parametrize(
    "clash", [replace(OWN, ggml_type=12), replace(OWN, name="q4_k")], ids=["type", "name"]
)
def test_two_formats_of_one_type_or_name_are_an_error_that_names_both(clash):
    with pytest.raises(PluginError, match=r"two quant formats claim .*Q4_K.*plugin:read"):
        QuantFormats([*BUILTIN_FORMATS, clash])


@pytest.mark.parametrize(
    "name",
    ["IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ3_S", "IQ2_S", "IQ1_M", "TQ1_0", "TQ2_0", "NVFP4"],
)
def test_other_types_are_read_by_gguf_py_with_one_warning(name, caplog, rng):
    kind = gguf.GGMLQuantizationType[name]
    formats = QuantFormats()
    with caplog.at_level(logging.WARNING):
        format_ = formats.of_type(kind.value)
        assert formats.of_type(kind.value) is format_
    (record,) = caplog.records
    assert name in record.getMessage()
    assert not formats.is_native(kind.value)
    data = rng.integers(0, 256, (3, 4 * format_.bytes), dtype=np.uint8)
    data.flags.writeable = False
    found = resolve(format_.dequantize)(data)
    with np.errstate(all="ignore"):
        expected = dequantize(data.copy(), kind).astype(np.float32)
    assert np.array_equal(found, expected, equal_nan=True)


@pytest.mark.parametrize(
    ("kind", "name"), [(15, "Q8_K"), (26, "I32"), (42, "Q2_0"), (77, "number 77")]
)
def test_a_type_that_nothing_reads_is_unsupported(kind, name):
    with pytest.raises(UnsupportedModelError, match=f"tensors of type {name} cannot be read here"):
        QuantFormats().of_type(kind)
