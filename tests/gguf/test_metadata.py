"""Typed access, and errors that name the key, the file, the found type and the expected type."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kinfolk.errors import ModelFormatError
from kinfolk.gguf.metadata import Metadata


@pytest.fixture
def meta():
    return Metadata.from_dict(
        {
            "general.architecture": "tiny",
            "tiny.count": 3,
            "tiny.negative": -3,
            "tiny.rate": 1e-6,
            "tiny.flag": True,
            "tiny.mode": "silu",
            "tiny.infinite": float("inf"),
            "tiny.no": float("nan"),
            "tiny.huge": 2**40,
            "tiny.heads": [4, 4, 8],
            "tiny.rates": [0.5, 1.5],
            "tiny.flags": [True, False, True],
            "tiny.names": ["a", "b"],
            "tiny.nothing": [],
        },
        Path("model.gguf"),
    )


def test_scalars_have_their_types(meta):
    assert meta.architecture == "tiny"
    assert meta.integer(meta.arch_key("count")) == 3
    assert meta.integer("tiny.negative") == -3
    assert meta.number("tiny.count") == 3.0
    assert meta.number("tiny.rate") == float(np.float32(1e-6))
    assert meta.boolean("tiny.flag") is True
    assert meta.string("tiny.mode", allowed=("silu", "gelu")) == "silu"


def test_arrays_have_their_types(meta):
    assert meta.integers("tiny.heads").tolist() == [4, 4, 8]
    assert meta.numbers("tiny.rates").tolist() == [0.5, 1.5]
    assert meta.booleans("tiny.flags").tolist() == [True, False, True]
    assert list(meta.strings("tiny.names")) == ["a", "b"]


def test_an_empty_list_is_an_array_of_anything(meta):
    assert len(meta.integers("tiny.nothing")) == 0
    assert len(meta.numbers("tiny.nothing")) == 0
    assert len(meta.booleans("tiny.nothing")) == 0
    assert len(meta.strings("tiny.nothing")) == 0


def test_a_default_stands_in_for_a_missing_key_only(meta):
    assert meta.integer("tiny.none", default=7) == 7
    assert meta.number("tiny.none", default=0.5) == 0.5
    assert meta.boolean("tiny.none", default=False) is False
    assert meta.string("tiny.none", default="x") == "x"
    assert meta.integers("tiny.none", default=[1]).tolist() == [1]
    assert meta.strings("tiny.none", default=["x"]) == ["x"]
    assert meta.integer("tiny.count", default=7) == 3
    with pytest.raises(ModelFormatError, match="expected an integer"):
        meta.integer("tiny.mode", default=7)


def test_one_value_or_one_a_layer(meta):
    assert meta.per_layer("tiny.count", 2) == (3, 3)
    assert meta.per_layer("tiny.heads", 3) == (4, 4, 8)
    assert meta.per_layer("tiny.none", 2, default=1) == (1, 1)
    assert meta.per_layer_flags("tiny.flags", 3) == (True, False, True)
    assert meta.per_layer_flags("tiny.flag", 2) == (True, True)
    with pytest.raises(ModelFormatError, match="has 3 entries, expected one for each of 4 layers"):
        meta.per_layer("tiny.heads", 4)
    with pytest.raises(ModelFormatError, match="has 3 entries"):
        meta.per_layer_flags("tiny.flags", 2)


@pytest.mark.parametrize(
    ("method", "key", "message"),
    [
        ("integer", "tiny.none", "key 'tiny.none' is missing"),
        ("integer", "tiny.mode", "key 'tiny.mode' is a string, expected an integer"),
        ("integer", "tiny.flag", "key 'tiny.flag' is a bool, expected an integer"),
        ("integer", "tiny.rate", "key 'tiny.rate' is a f32, expected an integer"),
        ("integer", "tiny.heads", "is an array of 3 u32, expected an integer"),
        ("number", "tiny.mode", "key 'tiny.mode' is a string, expected a number"),
        ("number", "tiny.infinite", "key 'tiny.infinite' is inf, expected a finite number"),
        ("boolean", "tiny.count", "key 'tiny.count' is a u32, expected a bool"),
        ("string", "tiny.count", "key 'tiny.count' is a u32, expected a string"),
        ("integers", "tiny.count", "is a u32, expected an array of integers"),
        ("integers", "tiny.names", "is an array of 2 string, expected an array of integers"),
        ("numbers", "tiny.names", "is an array of 2 string, expected an array of numbers"),
        ("booleans", "tiny.heads", "is an array of 3 u32, expected an array of bools"),
        ("strings", "tiny.heads", "is an array of 3 u32, expected an array of strings"),
    ],
)
def test_complaints_name_file_key_found_and_expected(meta, method, key, message):
    with pytest.raises(ModelFormatError, match=f"^model.gguf: .*{message}") as raised:
        getattr(meta, method)(key)
    assert raised.value.key == key
    assert raised.value.path == Path("model.gguf")


def test_values_outside_what_is_allowed_are_refused(meta):
    with pytest.raises(ModelFormatError, match=r"'tiny\.mode' is 'silu', expected one of 'gelu'"):
        meta.string("tiny.mode", allowed=("gelu",))
    with pytest.raises(ModelFormatError, match=r"'tiny\.count' is 3, expected one of 1, 2"):
        meta.integer("tiny.count", allowed=(1, 2))
    with pytest.raises(ModelFormatError, match=r"'tiny\.count' is 3, expected at least 4"):
        meta.integer("tiny.count", minimum=4)


@pytest.mark.parametrize(
    ("key", "ends", "wanted"),
    [
        ("tiny.count", {"maximum": 2}, "at most 2"),
        ("tiny.count", {"minimum": 4, "maximum": 9}, "4 to 9"),
        ("tiny.negative", {"minimum": 0}, "at least 0"),
        ("tiny.huge", {"minimum": 1}, "1 to 2147483647"),
        ("tiny.huge", {}, "-2147483647 to 2147483647"),
    ],
)
def test_integers_outside_of_their_range_are_refused_with_it(meta, key, ends, wanted):
    with pytest.raises(ModelFormatError, match=f"'{key}' is .*, expected {wanted}$"):
        meta.integer(key, **ends)


@pytest.mark.parametrize(
    ("key", "ends", "wanted"),
    [
        ("tiny.rate", {"minimum": 0.5}, "is 1e-06, expected at least 0.5"),
        ("tiny.negative", {"above": 0, "maximum": 1}, "is -3, expected above 0 and at most 1"),
        ("tiny.count", {"above": 3}, "is 3, expected above 3"),
        ("tiny.count", {"minimum": 0, "below": 3}, "is 3, expected at least 0 and below 3"),
        ("tiny.count", {"minimum": 0, "maximum": 1}, "is 3, expected 0 to 1"),
        ("tiny.infinite", {"minimum": 0}, "is inf, expected at least 0"),
        ("tiny.no", {}, "is nan, expected a finite number"),
        ("tiny.no", {"minimum": 0, "maximum": 1}, "is nan, expected 0 to 1"),
    ],
)
def test_numbers_outside_of_their_range_are_refused_with_it(meta, key, ends, wanted):
    with pytest.raises(ModelFormatError, match=f"'{key}' {wanted}$"):
        meta.number(key, **ends)


def test_the_ends_of_a_range_are_in_it_or_not(meta):
    assert meta.integer("tiny.count", minimum=3, maximum=3) == 3
    assert meta.number("tiny.count", minimum=3, maximum=3) == 3.0
    assert meta.number("tiny.count", above=2.5, below=3.5) == 3.0


def test_every_entry_of_an_array_for_layers_has_the_range(meta):
    assert meta.per_layer("tiny.heads", 3, minimum=4, maximum=8) == (4, 4, 8)
    with pytest.raises(ModelFormatError, match=r"'tiny\.heads' is 8 for layer 2, expected 4 to 7"):
        meta.per_layer("tiny.heads", 3, minimum=4, maximum=7)
    with pytest.raises(ModelFormatError, match=r"'tiny\.negative' is -3, expected at least 0"):
        meta.per_layer("tiny.negative", 3, minimum=0)


def test_a_default_is_not_a_value_of_the_file(meta):
    assert meta.integer("tiny.none", default=0, minimum=1) == 0
    assert meta.number("tiny.none", default=0.0, above=0) == 0


def test_metadata_is_a_collection_of_keys(meta):
    assert "tiny.count" in meta
    assert "tiny.none" not in meta
    assert len(meta) == len(list(meta)) == 14
    assert meta.value("tiny.heads").describe() == "array of 3 u32"


def test_python_values_get_the_types_of_a_file():
    meta = Metadata.from_dict(
        {
            "big": 2**40,
            "huge": 2**63,
            "far": [-(2**40), 1],
            "numpy": np.arange(3, dtype=np.int16),
            "scalar": np.float32(0.5),
        }
    )
    types = {key: meta.value(key).type for key in meta}
    assert types == {"big": "u64", "huge": "u64", "far": "i64", "numpy": "i16", "scalar": "f32"}


@pytest.mark.parametrize("value", [None, {"a": 1}, b"raw", 2**64, [[1], [2]], [None]])
def test_what_a_file_cannot_hold_is_refused(value):
    with pytest.raises(TypeError):
        Metadata.from_dict({"key": value})
