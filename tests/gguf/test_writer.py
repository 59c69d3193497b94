"""What is written is what is read, and no half-written file ever has the final name."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from kinfolk.errors import SettingsError
from kinfolk.gguf.file import GGUFFile
from kinfolk.gguf.writer import GGUFWriter

METADATA = {
    "general.name": "a name",
    "tiny.count": 3,
    "tiny.negative": -3,
    "tiny.rate": 0.25,
    "tiny.flag": False,
    "tiny.empty": "",
    "tiny.heads": [1, 2, 3],
    "tiny.rates": [0.5, -0.5],
    "tiny.flags": [True, False],
    "tiny.texts": ["a", "", "ž"],
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out.gguf"


def rows(count: int, size: int) -> np.ndarray:
    return np.arange(count * size, dtype=np.uint32).astype(np.uint8).reshape(count, size)


def test_metadata_and_tensors_come_back(path):
    quantised, plain = rows(4, 34), rows(3, 4)
    with GGUFWriter(path, "tiny") as out:
        out.add_metadata(METADATA)
        out.add("tiny.small", 5, "u16")
        out.declare("q", (2, 2, 32), "q8_0")
        out.declare("v", (3,), "F32")
        out.write("q", quantised)
        out.write("v", plain)
    with GGUFFile.open(path) as file:
        for key, value in METADATA.items():
            content = file.metadata.value(key).content
            assert (list(content) if isinstance(value, list) else content) == value
        assert file.metadata.architecture == "tiny"
        assert file.metadata.value("tiny.small").type == "u16"
        assert file.inventory["q"].shape == (2, 2, 32)
        assert file.inventory.bytes("q").tobytes() == quantised.tobytes()
        assert file.inventory.bytes("v").tobytes() == plain.tobytes()


def test_gguf_py_reads_the_file_too(path):
    data = rows(2, 34)
    with GGUFWriter(path, "tiny") as out:
        out.add_metadata(METADATA)
        out.declare("q", (2, 32), "Q8_0")
        out.write("q", data)
    reader = gguf.GGUFReader(path)
    assert reader.fields["tiny.heads"].contents() == [1, 2, 3]
    assert reader.tensors[0].data.tobytes() == data.tobytes()


def test_pieces_are_the_whole(path):
    data = rows(6, 34)
    with GGUFWriter(path, "tiny") as out:
        out.declare("q", (6, 32), "Q8_0")
        out.write("q", (data[i : i + 4] for i in (0, 4)))
    with GGUFFile.open(path) as file:
        assert file.inventory.bytes("q").tobytes() == data.tobytes()


def test_the_final_name_appears_only_when_the_file_is_complete(path):
    with GGUFWriter(path, "tiny") as out:
        out.declare("v", (3,), "F32")
        out.write("v", rows(3, 4))
        assert not path.exists()
        assert out.partial.exists()
    assert path.exists()
    assert not out.partial.exists()


def declared(out: GGUFWriter) -> GGUFWriter:
    out.declare("a", (3,), "F32")
    out.declare("b", (3,), "F32")
    return out


def written_then_failed(path) -> None:
    with GGUFWriter(path, "tiny") as out:
        declared(out).write("a", rows(3, 4))
        assert out.partial.exists()
        raise RuntimeError("boom")


def test_a_failure_leaves_neither_the_file_nor_the_partial_one(path):
    path.write_bytes(b"what was there before")
    with pytest.raises(RuntimeError, match="boom"):
        written_then_failed(path)
    assert path.read_bytes() == b"what was there before"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("b", rows(3, 4), "'b' is out of turn; the next one is 'a'"),
        ("a", rows(2, 4), "tensor 'a': 8 bytes came, not 12"),
    ],
)
def test_wrong_tensor_data_is_refused(path, name, data, message):
    with pytest.raises(ValueError, match=message), GGUFWriter(path, "tiny") as out:
        declared(out).write(name, data)
    assert not path.exists()


def test_a_forgotten_tensor_is_named(path):
    with (
        pytest.raises(ValueError, match="2 declared tensors were not written, 'a'"),
        GGUFWriter(path, "tiny") as out,
    ):
        declared(out)
    assert not path.exists()


def test_rows_that_are_no_blocks_are_refused(path):
    with (
        pytest.raises(ValueError, match="rows of 48 numbers do not divide into blocks of 256"),
        GGUFWriter(path, "tiny") as out,
    ):
        out.declare("a", (3, 48), "Q4_K")


def test_a_file_that_cannot_be_written_is_a_mistake_of_the_user(tmp_path):
    with (
        pytest.raises(SettingsError, match=r"cannot write .*: No such file or directory"),
        GGUFWriter(tmp_path / "none" / "out.gguf", "tiny") as out,
    ):
        out.add("tiny.count", 1)


def test_another_alignment_is_stated_and_kept(path):
    with GGUFWriter(path, "tiny") as out:
        out.add("general.alignment", 128)
        for name in "ab":
            out.declare(name, (3,), "F32")
        for name in "ab":
            out.write(name, rows(3, 4))
    with GGUFFile.open(path) as file:
        assert [info.offset % 128 for info in file.inventory.values()] == [0, 0]


def test_the_architecture_cannot_be_contradicted(path):
    with (
        pytest.raises(ValueError, match="the file is for 'tiny', not for 'other'"),
        GGUFWriter(path, "tiny") as out,
    ):
        out.add("general.architecture", "other")
