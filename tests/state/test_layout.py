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
from kinfolk.state.layout import ALIGNMENT, pool_layouts, section_bytes


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
            assert placed.offset % ALIGNMENT == 0
            assert placed.nbytes == section_bytes(placed.section)
            end = placed.offset + placed.nbytes
        assert end <= pool.block_bytes < end + ALIGNMENT


@pytest.mark.parametrize(("format_", "size"), [("f32", 4), ("f16", 2), ("bf16", 2)])
def test_a_section_holds_64_vectors_a_head(format_, size):
    assert section_bytes(section("k", 3, 7, format_)) == 3 * 64 * 7 * size


@pytest.mark.parametrize("codec", [Codec("q8_0"), Codec("q4_0"), Codec("f16", "hadamard")], ids=str)
def test_what_cannot_be_stored_yet_is_refused_by_name(codec):
    plan = StatePlan((Paged((Section("k", 1, 32, codec),)),))
    with pytest.raises(UnsupportedModelError, match=f"stored as {codec.format} yet"):
        pool_layouts(plan)
