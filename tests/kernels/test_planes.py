"""Planes hold exactly the numbers of the file's blocks, in the order they promise."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from kinfolk_kernels.packing import empty, fill, pack
from kinfolk_kernels.planes import LAYOUTS, can_pack, unpack

SCALES_AT = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def random_blocks(name, rows, columns, seed=0):
    """uint8 [rows, row bytes] with scales that are finite, some zero and some negative."""
    layout = LAYOUTS[name]
    rng = np.random.default_rng(seed)
    shape = (rows, columns // layout.block, layout.nbytes)
    raw = rng.integers(0, 256, shape, dtype=np.uint8)
    scales = rng.standard_normal(shape[:2]).astype(np.float16)
    scales[rng.random(shape[:2]) < 0.1] = 0
    for at in SCALES_AT.get(name, (0,)):
        raw[..., at : at + 2] = scales.view(np.uint8).reshape(*shape[:2], 2)
    return raw.reshape(rows, -1)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("rows", [1, 4, 7])
@pytest.mark.parametrize("columns", [256, 704, 768])
def test_unpacked_planes_are_the_dequantised_blocks_bit_for_bit(name, rows, columns):
    if columns % LAYOUTS[name].block:
        columns = 1024
    raw = random_blocks(name, rows, columns, seed=rows)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
    planes = pack(name, torch.from_numpy(raw), columns)
    assert planes.shape == (rows, columns)
    assert np.array_equal(unpack(planes).numpy(), expected)


def test_a_word_of_four_rows_is_contiguous():
    raw = random_blocks("Q4_K", 8, 512)
    planes = pack("Q4_K", torch.from_numpy(raw), 512)
    assert planes.q.shape == (2, 64, 4)
    blocks = raw.reshape(8, 2, 144)
    # Words of groups 0 and 1 take turns, two at a time.
    for place, number in enumerate([0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15]):
        word = blocks[5, 0, 16 + 4 * number : 20 + 4 * number].view(np.int32)[0]
        assert planes.q[1, place, 1].item() == word


def test_the_last_of_an_odd_number_of_groups_is_stored_in_order():
    raw = random_blocks("Q8_0", 4, 192)
    planes = pack("Q8_0", torch.from_numpy(raw), 192)
    words = raw.reshape(4, 6, 34)[3, :, 2:].reshape(-1).view(np.int32)
    assert planes.q[0, :12, 3].tolist() == [*words[:4], *words[16:20], *words[4:8]]
    assert planes.q[0, 32:, 3].tolist() == list(words[32:])


@pytest.mark.parametrize(
    ("name", "bits"), [("Q4_K", 4.625), ("Q5_K", 5.625), ("Q6_K", 6.625), ("Q8_0", 8.5)]
)
def test_planes_cost_little_more_than_blocks(name, bits):
    planes = pack(name, torch.from_numpy(random_blocks(name, 64, 512)), 512)
    assert planes.nbytes * 8 / (64 * 512) == bits


def test_what_cannot_be_packed_says_why():
    assert can_pack("Q4_K", 5120) == ""
    assert "IQ3_S" in can_pack("IQ3_S", 256)
    assert "96" in can_pack("Q8_0", 96)


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_can_be_taken_out_and_cut(name):
    planes = pack(name, torch.from_numpy(random_blocks(name, 11, 768)), 768)
    numbers = unpack(planes)
    rows = torch.tensor([10, 0, 3, 3, 7])
    assert torch.equal(planes.select(rows).dequantize(), numbers[rows])
    assert torch.equal(planes[4:9].dequantize(), numbers[4:9])
    with pytest.raises(ValueError, match="group of four"):
        planes[2:4]


def test_a_matrix_filled_in_pieces_is_the_matrix():
    raw = torch.from_numpy(random_blocks("Q6_K", 14, 512))
    planes = empty("Q6_K", 14, 512, "cpu")
    for start in (0, 8, 4, 12):
        fill(planes, start, raw[start : start + 4])
    assert all(map(torch.equal, planes.tensors, pack("Q6_K", raw, 512).tensors))
