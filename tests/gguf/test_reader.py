"""A well-formed file is read completely, and without copies."""

from __future__ import annotations

import gc
import struct
import weakref

import gguf
import numpy as np
import pytest

from kinfolk.errors import ModelFormatError
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.tensor_types import TENSOR_TYPES, TensorType
from kinfolk.gguf.values import StringArray


def in_map(array):
    """Whether the array is a view of memory it does not own."""
    return not array.flags.owndata


def test_metadata_of_a_real_file_equals_what_gguf_py_reads(case_path):
    expected = gguf.GGUFReader(case_path)
    with GGUFFile.open(case_path) as file:
        keys = [key for key in expected.fields if not key.startswith("GGUF.")]
        assert list(file.metadata) == keys
        for key in keys:
            found = file.metadata.value(key).content
            want = expected.fields[key].contents()
            assert (list(found) if isinstance(want, list) else found) == want


def test_tensors_of_a_real_file_equal_what_gguf_py_reads(case_path):
    expected = gguf.GGUFReader(case_path)
    with GGUFFile.open(case_path) as file:
        assert list(file.inventory) == [tensor.name for tensor in expected.tensors]
        for tensor in expected.tensors:
            info = file.inventory[tensor.name]
            assert info.shape == tuple(int(n) for n in tensor.shape[::-1])
            assert info.type_name == tensor.tensor_type.name
            assert info.nbytes == tensor.n_bytes
            stored = file.inventory.bytes(tensor.name)
            assert stored.shape == (info.rows, info.row_bytes)
            assert stored.tobytes() == tensor.data.tobytes()


def test_tensor_types_have_the_sizes_of_the_specification():
    # gguf-py still has the size of an older Q8_1, a type of activations that no file holds.
    sizes = {**gguf.GGML_QUANT_SIZES, gguf.GGMLQuantizationType.Q8_1: (32, 36)}
    for kind, (block, size) in sizes.items():
        assert TENSOR_TYPES[kind.value] == TensorType(kind.name, block, size)


@pytest.mark.parametrize(
    ("kind", "layout", "value", "name"),
    [
        (0, "<B", 200, "u8"),
        (1, "<b", -100, "i8"),
        (2, "<H", 60000, "u16"),
        (3, "<h", -30000, "i16"),
        (4, "<I", 4_000_000_000, "u32"),
        (5, "<i", -2_000_000_000, "i32"),
        (6, "<f", 0.5, "f32"),
        (7, "<?", True, "bool"),
        (10, "<Q", 2**63 + 1, "u64"),
        (11, "<q", -(2**62), "i64"),
        (12, "<d", 1e-300, "f64"),
    ],
)
def test_every_scalar_type_is_read_alone_and_in_arrays(build, write, kind, layout, value, name):
    raw = build.file()
    raw.entries.append(build.entry("one", kind, struct.pack(layout, value)))
    payload = struct.pack("<IQ", kind, 3) + 3 * struct.pack(layout, value)
    raw.entries.append(build.entry("many", 9, payload))
    with GGUFFile.open(write(raw)) as file:
        one, many = file.metadata.value("one"), file.metadata.value("many")
        assert (one.type, one.content, one.is_array) == (name, value, False)
        assert (many.type, many.content.tolist(), many.is_array) == (name, [value] * 3, True)
        assert in_map(many.content)


def test_strings_are_read_alone_and_decoded_lazily_in_arrays(build, write):
    texts = ["", "a", "žluťoučký", "\0", "🦙" * 1000]
    raw = build.file()
    payload = struct.pack("<IQ", 8, len(texts)) + b"".join(build.text(t) for t in texts)
    raw.entries += [build.entry("many", 9, payload), build.entry("one", 8, build.text("žl"))]
    with GGUFFile.open(write(raw)) as file:
        many = file.metadata.strings("many")
        assert isinstance(many, StringArray)
        assert (list(many), len(many), many[2], many[-1]) == (texts, 5, texts[2], texts[4])
        assert many[1:3] == texts[1:3]
        assert file.metadata.string("one") == "žl"
        with pytest.raises(IndexError):
            many[5]


def test_a_text_that_is_not_utf8_inside_an_array_is_named_when_it_is_read(build, write):
    raw = build.file()
    payload = struct.pack("<IQ", 8, 3) + build.text("a") + build.text(b"\xff") + build.text("b")
    raw.entries.append(build.entry("tokens", 9, payload))
    with GGUFFile.open(write(raw)) as file:
        tokens = file.metadata.strings("tokens")
        assert (tokens[0], tokens[2], tokens.raw(1)) == ("a", "b", b"\xff")
        with pytest.raises(ModelFormatError, match="entry 1 of key 'tokens' is not UTF-8"):
            list(tokens)


def test_empty_arrays_are_empty(build, write):
    raw = build.file()
    raw.entries.append(build.entry("numbers", 9, struct.pack("<IQ", 5, 0)))
    raw.entries.append(build.entry("texts", 9, struct.pack("<IQ", 8, 0)))
    with GGUFFile.open(write(raw)) as file:
        assert file.metadata.integers("numbers").size == 0
        assert list(file.metadata.strings("texts")) == []


@pytest.mark.parametrize("version", [2, 3])
def test_both_current_versions_are_read(build, write, version):
    with GGUFFile.open(write(build.file(version=version))) as file:
        assert file.version == version
        assert file.inventory.bytes("b").tobytes() == bytes(range(32, 64))


def test_the_stated_alignment_places_the_tensors(build, write):
    raw = build.file(alignment=256, data=bytes(range(256)) * 2)
    raw.entries.append(build.entry("general.alignment", 4, struct.pack("<I", 256)))
    raw.tensors = [build.tensor("a", (8,), 0, 0), build.tensor("b", (8,), 0, 256)]
    with GGUFFile.open(write(raw)) as file:
        assert file.alignment == 256
        assert file.inventory["b"].offset % 256 == 0
        assert file.inventory.bytes("b").tobytes() == bytes(range(32))


def test_shapes_are_in_torch_order(build, write):
    with GGUFFile.open(write(build.file())) as file:
        info = file.inventory["a"]
        assert (info.shape, info.rows, info.row_bytes) == ((2, 4), 2, 16)


def test_bytes_are_a_read_only_view(build, write):
    with GGUFFile.open(write(build.file())) as file:
        stored = file.inventory.bytes("a")
        assert in_map(stored)
        assert not stored.flags.writeable


def test_views_outlive_the_file_and_the_file_says_that_it_is_closed(build, write):
    with GGUFFile.open(write(build.file())) as file:
        kept = file.inventory.bytes("a")
    assert kept.tobytes() == bytes(range(32))
    with pytest.raises(ValueError, match="is closed"):
        file.inventory.bytes("a")


def test_a_file_nobody_holds_is_gone_without_the_collector(build, write):
    gc.disable()
    try:
        with GGUFFile.open(write(build.file())) as file:
            file.inventory.bytes("a")
        gone = weakref.ref(file)
        del file
        assert gone() is None
    finally:
        gc.enable()


def test_a_type_that_a_plugin_knows_is_accepted(build, write):
    raw = build.file(tensors=[build.tensor("a", (16,), 200, 0)])
    with GGUFFile.open(write(raw), {200: TensorType("OWN", 16, 10)}) as file:
        assert (file.inventory["a"].type_name, file.inventory["a"].nbytes) == ("OWN", 10)


def test_a_file_without_tensors_is_a_file(build, write):
    with GGUFFile.open(write(build.file(tensors=[], data=b""))) as file:
        assert len(file.inventory) == 0
        assert file.inventory.nbytes == 0


def test_numeric_arrays_share_memory_with_the_map(case_path):
    with GGUFFile.open(case_path) as file:
        kinds = file.metadata.integers("tokenizer.ggml.token_type")
        assert in_map(kinds)
        assert np.issubdtype(kinds.dtype, np.int32)
