"""Salts and hashes: what they depend on, and what not."""

from __future__ import annotations

import shutil
from dataclasses import replace
from hashlib import blake2b

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.gguf.file import GGUFFile
from kinfolk.state.cache_salt import EDGE_BYTES, SaltRecord, model_hash
from kinfolk.state.chain_hash import chunk_hashes, next_hash, pack, root, unpack

RECORD = SaltRecord("name", "a" * 32, "b" * 16, 512, "bf16 int8", version="1")
CHANGES = {
    "model_hash": "c" * 32,
    "layout_hash": "c" * 16,
    "slice_length": 2048,
    "activations": "f16 f16",
    "version": "2",
    "format": 9,
}


@pytest.mark.parametrize("field", CHANGES)
def test_every_field_changes_the_salt_and_is_named_as_the_difference(field):
    other = replace(RECORD, **{field: CHANGES[field]})
    assert other.salt != RECORD.salt
    (words,) = RECORD.differences(other)
    assert f"{CHANGES[field]} there, {getattr(RECORD, field)} here" in words


def test_the_name_of_a_model_is_only_shown():
    other = replace(RECORD, model="copy")
    assert other.salt == RECORD.salt
    assert RECORD.differences(other) == []


def test_a_record_survives_json():
    assert SaltRecord.from_json(RECORD.to_json()) == RECORD


@pytest.mark.parametrize("text", ["", "[]", "{}", RECORD.to_json().replace("512", '"512"')])
def test_other_text_is_no_record(text):
    with pytest.raises(ValueError):  # noqa: PT011, whichever part complains
        SaltRecord.from_json(text)


def hash_of(path):
    with GGUFFile.open(path) as file:
        return model_hash(file)


def test_a_copy_of_a_model_has_its_hash_and_another_model_has_not(cases, tmp_path):
    path = cases / "qwen35.gguf"
    assert hash_of(shutil.copy(path, tmp_path / "copy.gguf")) == hash_of(path)
    assert hash_of(cases / "laguna.gguf") != hash_of(path)


@pytest.mark.parametrize("place", ["metadata", "first tensor", "last byte"])
def test_a_change_of_header_or_of_either_end_of_the_tensors_is_seen(cases, tmp_path, place):
    path = shutil.copy(cases / "qwen35.gguf", tmp_path / "changed.gguf")
    with GGUFFile.open(path) as file:
        start = min(tensor.offset for tensor in file.inventory.values())
    content = bytearray(path.read_bytes())
    position = {
        "metadata": content.index(b"general.name") if b"general.name" in content else 60,
        "first tensor": start + EDGE_BYTES // 2 if len(content) > start + EDGE_BYTES else start,
        "last byte": len(content) - 1,
    }[place]
    content[position] ^= 1
    path.write_bytes(content)
    assert hash_of(path) != hash_of(cases / "qwen35.gguf")


@given(st.binary(max_size=400), st.integers(0, 2**128 - 1))
def test_the_chain_hashes_each_chunk_with_the_hash_before_it(packed, parent):
    expected, known = [], parent
    for start in range(0, len(packed) - 63, 64):
        data = known.to_bytes(16, "big") + packed[start : start + 64]
        known = int.from_bytes(blake2b(data, digest_size=16).digest(), "big")
        assert known == next_hash(expected[-1] if expected else parent, data[16:])
        expected.append(known)
    assert chunk_hashes(parent, packed, 64) == expected
    assert unpack(pack(expected)) == expected


def test_roots_of_salts_differ():
    assert len({root(1), root(2), 1, 2}) == 4


def test_every_part_of_a_split_model_counts(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "tiny", split_max_tensors=1)
    writer.add_string("general.name", "split")
    for index in range(3):
        writer.add_tensor(f"blk.{index}.weight", np.full((4, 8), index, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    parts = sorted(tmp_path.glob("*.gguf"))
    assert len(parts) == 3
    hashes = {hash_of(parts[0])}
    for part in parts:
        content = bytearray(part.read_bytes())
        content[-1] ^= 1
        part.write_bytes(content)
        hashes.add(hash_of(parts[0]))
    assert len(hashes) == 4
