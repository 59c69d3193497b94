"""Where sections lie in a block."""

from __future__ import annotations

import pytest

from kinfolk.errors import UnsupportedModelError
from kinfolk.plans import (
    Codec,
    Paged,
    Recurrent,
    RecurrentTensor,
    Section,
    Shared,
    StatePlan,
)
from kinfolk.state.layout import CODED, SCALED, SECTION_ALIGNMENT_BYTES, plane_bytes, pool_layouts
from kinfolk_kernels import codecs


def section(name, heads=2, dim=24, format_="f16"):
    return Section(name, heads, dim, Codec(format_))


PLAN = StatePlan(
    (
        Paged((section("k"), section("v", dim=40))),
        Recurrent((RecurrentTensor("s", (3,)),)),
        Paged((section("k", 1, 3, "f32"),), window=100),
        Shared(0),
        Paged((section("k", 1, 5, "bf16"), section("v"))),
        Paged((section("k"),), window=30),
    )
)


def test_there_is_a_pool_for_each_window_full_attention_first():
    full, short, long = pool_layouts(PLAN)
    assert [pool.window for pool in (full, short, long)] == [None, 30, 100]
    assert list(full.sections) == [(0, "k"), (0, "v"), (4, "k"), (4, "v")]
    assert list(short.sections) == [(5, "k")]
    assert list(long.sections) == [(2, "k")]


def test_sections_are_aligned_and_do_not_overlap():
    for pool in pool_layouts(PLAN):
        end = 0
        for placed in pool.sections.values():
            assert placed.offset >= end
            assert placed.offset % SECTION_ALIGNMENT_BYTES == 0
            assert placed.nbytes == sum(plane_bytes(placed.section))
            end = placed.offset + placed.nbytes
        assert end <= pool.block_bytes < end + SECTION_ALIGNMENT_BYTES


@pytest.mark.parametrize(("format_", "size"), [("f32", 4), ("f16", 2), ("bf16", 2)])
def test_a_section_holds_64_vectors_a_head(format_, size):
    assert plane_bytes(section("k", 3, 7, format_)) == (3 * 64 * 7 * size,)


@pytest.mark.parametrize(("format_", "block"), [("q8_0", 34), ("q4_0", 18)])
def test_a_coded_section_is_codes_and_a_scale_for_32_of_them(format_, block):
    assert sum(plane_bytes(section("k", 3, 96, format_))) == 3 * 64 * 3 * block
    assert plane_bytes(section("k", 3, 96, format_))[1] == 3 * 64 * 3 * 2


def test_codes_take_the_bytes_that_kernels_think_they_do():
    assert CODED == codecs.FORMATS
    assert SCALED == codecs.CODED_BLOCK_NUMBERS


@pytest.mark.parametrize(
    ("codec", "dim", "message"),
    [
        (Codec("q8_0"), 48, "'k': vectors of 48 numbers cannot be stored as q8_0"),
        (Codec("q4_0"), 16, "'k': vectors of 16 numbers cannot be stored as q4_0"),
        (Codec("f16", "hadamard"), 32, "'k': numbers stored as f16 are not rotated"),
    ],
    ids=str,
)
def test_what_cannot_be_stored_is_refused_by_name(codec, dim, message):
    plan = StatePlan((Paged((Section("k", 1, dim, codec),)),))
    with pytest.raises(UnsupportedModelError, match=message):
        pool_layouts(plan)


def test_values_can_be_stored_apart():
    apart = PLAN.storing("v", Codec("f32"))
    assert PLAN.layers[0].sections[1].codec == Codec("f16"), "the plan itself stays as it is"
    for layer, was in zip(apart.layers, PLAN.layers, strict=True):
        if not isinstance(was, Paged):
            assert layer == was
            continue
        for now, before in zip(layer.sections, was.sections, strict=True):
            assert now.codec == (Codec("f32") if now.name == "v" else before.codec)
            assert (now.name, now.heads, now.dim) == (before.name, before.heads, before.dim)
    assert apart.layout_hash() != PLAN.layout_hash()
