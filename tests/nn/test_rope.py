"""Frequencies of rotary embeddings, against published tables."""

from __future__ import annotations

import math

import pytest
import torch

from kinfolk.config import Rope, Yarn
from kinfolk.gguf.metadata import Metadata
from kinfolk.nn.rope import RotaryEmbedding, frequencies, magnitude
from kinfolk.nn.rope_metadata import read_rope
from kinfolk_kernels.qk_rope_write.rope import rope as turn

PLACES = (8, 12, 16, 24, 31)
# Pairs 8, 12, 16, 24 and 31 of 64 dimensions with base 5e5: (factor, original context, beta_fast).
YARN = {
    (32, 4096, 64): (0.0276703, 0.0027969, 4.41942e-5, 1.66197e-6, 9.41831e-8),
    (32, 8192, 64): (0.0342941, 0.00408141, 2.93289e-4, 1.66197e-6, 9.41831e-8),
    (32, 8192, 32): (0.0376060, 0.00493774, 3.48643e-4, 1.66197e-6, 9.41831e-8),
    (128, 8192, 32): (0.0376060, 0.00488077, 3.22863e-4, 4.15492e-7, 2.35458e-8),
}


def yarn(factor=32.0, original=8192, fast=32.0, **fields):
    scaling = Yarn(factor=factor, original_context=original, beta_fast=fast, **fields)
    return Rope(dims=64, base=5e5, yarn=scaling)


@pytest.mark.parametrize(("setting", "expected"), YARN.items(), ids=str)
def test_yarn_frequencies(setting, expected):
    found = frequencies(yarn(*setting))
    assert found.dtype == torch.float64
    assert found[list(PLACES)].tolist() == pytest.approx(expected, rel=3e-6)
    assert found[:2].tolist() == pytest.approx([1, 0.663601], rel=1e-6)


def test_plain_frequencies():
    found = frequencies(Rope(dims=64, base=1e7))
    assert found[[0, 1, 31]].tolist() == pytest.approx([1, 0.604296, 1.65482e-7], rel=3e-6)


@pytest.mark.parametrize("name", ["rope.scaling.factor", "rope.scale_linear"])
@pytest.mark.parametrize(("kind", "factor"), [("", 4.0), ("linear", 4.0), ("", 1.0), ("none", 4.0)])
def test_a_factor_without_a_kind_is_linear(name, kind, factor):
    """Old files name no kind."""
    keys = {"general.architecture": "a", "a.rope.freq_base": 1e4, f"a.{name}": factor}
    meta = Metadata.from_dict(keys | ({"a.rope.scaling.type": kind} if kind else {}))
    found = read_rope(meta, 8, default_dims=8)
    assert found.linear_factor == (1.0 if kind == "none" else factor)


def test_a_factor_of_0_is_none():
    keys = {"general.architecture": "a", "a.rope.freq_base": 1e4, "a.rope.scaling.factor": 0.0}
    assert read_rope(Metadata.from_dict(keys), 8, default_dims=8).linear_factor == 1.0


def test_a_linear_factor_slows_every_pair_down():
    plain, slow = (frequencies(Rope(dims=8, base=1e4, linear_factor=f)) for f in (1.0, 4.0))
    assert torch.equal(slow, plain / 4)


def test_yarn_with_factor_one_is_plain():
    torch.testing.assert_close(frequencies(yarn(factor=1.0)), frequencies(Rope(dims=64, base=5e5)))


@pytest.mark.parametrize(
    ("rope", "expected"),
    [
        (Rope(dims=64, base=5e5), 1.0),
        (yarn(factor=32.0), 1.346574),
        (yarn(factor=64.0), 1.415888),
        (yarn(factor=128.0), 1.485203),
        (yarn(factor=1.0), 1.0),
        (yarn(factor=0.5), 1.0),
        (yarn(factor=32.0, magnitude=1.0), 1.0),
        (yarn(factor=32.0, magnitude=1.7), 1.7),
    ],
    ids=str,
)
def test_the_factor_on_cosine_and_sine(rope, expected):
    assert magnitude(rope) == pytest.approx(expected, abs=1e-6)


# -- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rope", [Rope(dims=8, base=1e4), yarn()], ids=["plain", "yarn"])
def test_tables_hold_every_position_of_the_context(context, rope):
    made = RotaryEmbedding(context, rope)
    assert made.cos.shape == made.sin.shape == (300, rope.dims // 2)
    assert made.cos.dtype == made.sin.dtype == torch.float32
    rate = frequencies(rope)
    for position in (0, 1, 299):
        turns = [position * float(f) for f in rate]
        for table, function in ((made.cos, math.cos), (made.sin, math.sin)):
            expected = [function(turn) * magnitude(rope) for turn in turns]
            assert table[position].tolist() == pytest.approx(expected, abs=1e-7)


def test_divisors_slow_single_pairs_down(context):
    rope = Rope(dims=8, base=1e4)
    divisors = torch.tensor([1.0, 2.0, 1.0, 1e6])
    plain, divided = RotaryEmbedding(context, rope), RotaryEmbedding(context, rope, divisors)
    assert torch.equal(divided.cos[:, [0, 2]], plain.cos[:, [0, 2]])
    torch.testing.assert_close(divided.sin[::2, 1], plain.sin[:150, 1], rtol=0, atol=1e-6)
    assert float(divided.sin[:, 3].abs().max()) < 1e-5


def test_rows_turn_by_their_own_position(context):
    made = RotaryEmbedding(context, Rope(dims=2, base=1e4))
    x = torch.tensor([[[1.0, 0.0, 7.0]]]).repeat(3, 1, 1)
    found = turn(x, torch.tensor([0, 5, 299]), made.cos, made.sin)
    for row, position in enumerate((0, 5, 299)):
        expected = [math.cos(position), math.sin(position), 7]
        assert found[row, 0].tolist() == pytest.approx(expected, abs=1e-6)
