"""A model in several files reads as one, or says which part is wrong."""

from __future__ import annotations

import shutil
import struct

import gguf
import numpy as np
import pytest

from kinfolk.errors import ModelFormatError
from kinfolk.gguf.file import GGUFFile

TENSORS = {f"t{i}": np.full((2, 4), i, np.float32) for i in range(5)}


@pytest.fixture
def parts(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "tiny", split_max_tensors=2)
    writer.add_uint32("tiny.count", 3)
    for name, values in TENSORS.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(tmp_path.glob("*.gguf"))


def test_all_parts_are_one_inventory(parts):
    assert len(parts) == 3
    with GGUFFile.open(parts[0]) as file:
        assert file.paths == tuple(parts)
        assert list(file.inventory) == list(TENSORS)
        assert file.metadata.integer("tiny.count") == 3
        assert [info.part for info in file.inventory.values()] == [0, 0, 1, 1, 2]
        for name, values in TENSORS.items():
            assert file.inventory.bytes(name).tobytes() == values.tobytes()


def test_opening_another_part_names_the_first(parts):
    with pytest.raises(ModelFormatError, match=r"part 2 of 3; open the first part, model-00001-of"):
        GGUFFile.open(parts[1])


def test_a_missing_part_is_named(parts):
    parts[2].unlink()
    with pytest.raises(ModelFormatError, match=f"{parts[2].name}: cannot open"):
        GGUFFile.open(parts[0])


def test_a_renamed_first_part_cannot_find_the_others(parts, tmp_path):
    renamed = parts[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(ModelFormatError, match="one of 3 parts, but its name does not end in"):
        GGUFFile.open(renamed)


def test_parts_in_the_wrong_order_are_noticed(parts):
    shutil.copy(parts[2], parts[1])
    with pytest.raises(ModelFormatError, match="says it is part 3 of 3, expected part 2 of 3"):
        GGUFFile.open(parts[0])


def test_the_number_of_tensors_is_checked(parts):
    raw = bytearray(parts[0].read_bytes())
    key = b"split.tensors.count"
    place = raw.index(key) + len(key) + 4
    assert struct.unpack_from("<i", raw, place)[0] == 5
    struct.pack_into("<i", raw, place, 6)
    parts[0].write_bytes(raw)
    with pytest.raises(ModelFormatError, match=r"the 3 parts hold 5 tensors, .* says 6"):
        GGUFFile.open(parts[0])


def test_a_tensor_in_two_parts_is_an_error(parts):
    raw = parts[2].read_bytes().replace(b"t4", b"t0")
    parts[2].write_bytes(raw)
    with pytest.raises(ModelFormatError, match="tensor 't0' occurs twice"):
        GGUFFile.open(parts[0])


def changed(path, key, layout, value):
    """A file with one of its numbers overwritten."""
    raw = bytearray(path.read_bytes())
    place = raw.index(key.encode()) + len(key) + 4
    struct.pack_into(layout, raw, place, value)
    path.write_bytes(raw)
    return path


def test_parts_that_were_merged_are_one_file(parts):
    """Merging keeps the keys of the first part, with a count of 0."""
    merged = changed(parts[0], "split.count", "<H", 0)
    with GGUFFile.open(merged) as file:
        assert file.paths == (merged,)
        assert list(file.inventory) == ["t0", "t1"]


def test_a_negative_number_of_tensors_is_none(parts):
    first = changed(parts[0], "split.tensors.count", "<i", -5)
    with pytest.raises(ModelFormatError, match=r"'split.tensors.count' is -5, expected at least 0"):
        GGUFFile.open(first)


def test_a_count_of_parts_that_are_not_there_opens_none_of_them(parts):
    first = changed(parts[0], "split.count", "<H", 65535)
    with pytest.raises(ModelFormatError, match="one of 65535 parts, but its name does not end in"):
        GGUFFile.open(first)
