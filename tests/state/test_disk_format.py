"""Files of the disk tier as bytes: the documented examples, and headers of any shape."""

from __future__ import annotations

import re
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.state.chain_hash import next_hash, root
from kinfolk.state.disk_files import write_entry
from kinfolk.state.disk_format import (
    BLOCK_SECTION,
    CHECKED_BYTES,
    RECURRENT_SECTION,
    TOKENS_SECTION,
    DamagedFile,
    PointTensor,
    checksums_of,
    chunk_header,
    decode,
    point_header,
)

SALT = 0x000102030405060708090A0B0C0D0E0F


def documented(repo, kind):
    """The bytes of an example on the page, whose offsets are checked."""
    page = (repo / "docs/cache_format.md").read_text()
    (block,) = re.findall(rf"^```{kind}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    content = b""
    for line in block.splitlines():
        offset, digits = line.split()[:2]
        assert int(offset, 16) == len(content), line
        content += bytes.fromhex(digits)
    return content


def test_the_point_on_the_page_is_what_is_written(repo, tmp_path):
    packed, above = array("q", [17, 4]).tobytes(), root(SALT)
    tensors = [PointTensor(3, "s", "f32", (1,), 0)]
    key = next_hash(above, packed)
    header = point_header(SALT, key, above, 2, [], (0,), tensors, 4, [4])
    payload = {(TOKENS_SECTION, 0): packed, (BLOCK_SECTION, 0): bytes.fromhex("0a0b0c0d")}
    payload[RECURRENT_SECTION, 0] = array("f", [1.0]).tobytes()
    write_entry(tmp_path / "point", header, payload)
    assert (tmp_path / "point").read_bytes() == documented(repo, "cache-point")


def test_the_chunk_on_the_page_is_what_is_written(repo, tmp_path):
    packed, above = array("q", range(64)).tobytes(), root(SALT)
    header = chunk_header(SALT, next_hash(above, packed), above, 0, 1, 4)
    payload = {(TOKENS_SECTION, 0): packed, (BLOCK_SECTION, 1): bytes.fromhex("0a0b0c0d")}
    write_entry(tmp_path / "chunk", header, payload)
    written = (tmp_path / "chunk").read_bytes()
    assert written[: header.header_bytes] == documented(repo, "cache-chunk")
    assert written[header.sections[0].offset :][: len(packed)] == packed
    assert len(written) == header.file_bytes


hashes = st.integers(0, 2**128 - 1)
tensors = st.builds(
    PointTensor,
    layer=st.integers(0, 200),
    name=st.text(max_size=20),
    dtype=st.sampled_from(["f32", "f16", "bf16"]),
    shape=st.lists(st.integers(1, 9), max_size=4).map(tuple),
    offset=st.integers(0, 2**40),
)


@st.composite
def points(draw):
    length = draw(st.integers(1, 1000))
    full = length // 64
    return point_header(
        draw(hashes),
        draw(hashes),
        draw(hashes),
        length,
        draw(st.lists(hashes, min_size=full, max_size=full)),
        draw(st.lists(st.integers(0, full), min_size=1, max_size=3)),
        draw(st.lists(tensors, max_size=5)),
        draw(st.integers(0, 5 * CHECKED_BYTES)),
        draw(st.lists(st.integers(0, 2 * CHECKED_BYTES), max_size=3)),
        draw(st.just("") | st.text(max_size=20)),
    )


sizes = st.integers(1, 3 * CHECKED_BYTES)
chunks = st.builds(
    chunk_header, hashes, hashes, hashes, st.integers(0, 10**6), st.integers(0, 9), sizes
)


@given(points() | chunks)
def test_a_header_survives_its_bytes(header):
    encoded = header.encode()
    assert len(encoded) == header.header_bytes
    assert decode(encoded, header.file_bytes) == header


@given(points(), st.data())
def test_no_changed_header_is_accepted(header, data):
    content = bytearray(header.encode())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedFile):
        decode(bytes(content), header.file_bytes)


@given(points(), st.integers(0, 400))
def test_no_header_that_is_cut_off_is_accepted(header, count):
    content = header.encode()
    with pytest.raises(DamagedFile):
        decode(content[: min(count, len(content) - 1)], header.file_bytes)


def test_every_mib_has_a_checksum():
    sizes = (0, 1, CHECKED_BYTES, CHECKED_BYTES + 1, 10 * CHECKED_BYTES)
    assert [checksums_of(size) for size in sizes] == [0, 1, 1, 2, 10]


def test_sections_of_several_mib_are_checked_piece_by_piece(tmp_path):
    import numpy as np

    from kinfolk.state.disk_files import open_chunk

    packed, above = array("q", range(64)).tobytes(), root(SALT)
    key = next_hash(above, packed)
    block = np.random.default_rng(0).integers(0, 256, 2 * CHECKED_BYTES + 77, dtype=np.uint8)
    header = chunk_header(SALT, key, above, 0, 0, block.nbytes)
    path = tmp_path / "chunk"
    write_entry(path, header, {(TOKENS_SECTION, 0): packed, (BLOCK_SECTION, 0): block.data})
    with open_chunk(path, SALT, key, 0) as file:
        assert bytes(file.section_bytes(BLOCK_SECTION)) == block.tobytes()
    content = bytearray(path.read_bytes())
    content[header.sections[1].offset + CHECKED_BYTES + 5] ^= 4
    path.write_bytes(content)
    with (
        open_chunk(path, SALT, key, 0) as file,
        pytest.raises(DamagedFile, match="checksum of MiB 1 is wrong"),
    ):
        file.section_bytes(BLOCK_SECTION)
