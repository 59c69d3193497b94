"""Host memory: pages of slabs, rows that are made of them, and bytes that pass through."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kinfolk.errors import CapacityError, StateError
from kinfolk.plans import Codec, Paged, Recurrent, RecurrentTensor, Section, StatePlan
from kinfolk.state.host import HostMemory, copy_bytes
from kinfolk.state.host_rows import LARGEST_PAGE_BYTES, SLAB_BYTES, HostLayout, HostRows
from kinfolk.state.layout import pool_layouts, slot_bytes

CPU = torch.device("cpu")
FULL = Paged((Section("k", 4, 128, Codec("bf16")), Section("v", 4, 128, Codec("bf16"))))
NARROW = Paged((Section("k", 1, 32, Codec("bf16")),), window=512)
DELTA = Recurrent((RecurrentTensor("s", (32, 128, 128)), RecurrentTensor("c", (3, 1000), "bf16")))


@pytest.mark.parametrize(
    "layers",
    [(FULL,) * 40, (FULL, NARROW), (FULL,) * 16 + (DELTA,) * 48, (DELTA,), (NARROW,) * 7],
    ids=["large blocks", "two sizes", "hybrid", "recurrent", "small blocks"],
)
def test_a_page_is_small_and_rows_waste_less_than_one(layers):
    plan = StatePlan(layers)
    layout = HostLayout.of(plan)
    assert 0 < layout.page_bytes <= LARGEST_PAGE_BYTES
    blocks = [each.block_bytes for each in pool_layouts(plan)]
    rows = list(zip(layout.block_pages, blocks, strict=True))
    for pages, nbytes in [*rows, (layout.recurrent_pages, slot_bytes(plan))]:
        assert 0 <= pages * layout.page_bytes - nbytes < layout.page_bytes
    smallest = min((nbytes for _, nbytes in rows), default=slot_bytes(plan))
    pages = -(-smallest // layout.page_bytes)
    assert pages * layout.page_bytes - smallest <= 128 * pages, "the smallest row fits its pages"


@given(capacity=st.integers(0, 2**31), page=st.integers(1, LARGEST_PAGE_BYTES // 128))
def test_slabs_never_take_more_than_the_capacity(capacity, page):
    layout = HostLayout(page * 128)
    pages = layout.pages_in(capacity)
    if pages == 0:
        assert capacity < 2 * layout.page_bytes
        return
    slabs, rest = divmod(pages, layout.slab_pages(capacity))
    slab = 1 << (min(capacity, SLAB_BYTES).bit_length() - 1)
    assert rest == 0
    assert layout.slab_pages(capacity) * layout.page_bytes <= slab
    assert slabs * slab <= capacity


def test_rooms_are_counted_in_pages_and_rows():
    rows = HostRows(HostLayout(128, (3,), 2), 1024)
    rows.charge(3)
    rows.charge(2)
    assert (rows.used, rows.rows, rows.used_bytes) == (5, 2, 5 * 128)
    assert rows.fits(3)
    assert not rows.fits(4)
    rows.discharge(3)
    assert rows.fits(6)
    with pytest.raises(StateError, match="3 pages of host memory cannot be given back: 2 used"):
        rows.discharge(3)


def test_memory_is_ready_for_what_may_come_at_once():
    layout = HostLayout(128, (3, 1), 5)
    assert layout.pages_ahead == 2 * (5 + 3 + 1)
    assert [layout.prefix_pages(n) for n in (0, 1, 64, 65, 8192)] == [5, 9, 9, 13, 5 + 128 * 4]
    memory = HostMemory(layout, 1024, CPU)
    memory.expect(10**6)  # No more than there is room for, and none of it is used.
    assert memory.used_bytes == 0
    memory.add(1, 1024)


def test_without_a_limit_everything_fits():
    assert HostRows(HostLayout(128, (3,), 2)).fits(2**40)


def test_rows_keep_their_bytes_wherever_their_pages_are():
    memory = HostMemory(HostLayout(128), 128 * 32, CPU)
    generator = torch.Generator().manual_seed(0)
    rows = {}

    def add(identity, nbytes):
        memory.add(identity, nbytes)
        rows[identity] = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)
        copy_bytes([rows[identity]], memory.parts(identity))

    for identity, nbytes in enumerate((100, 500, 128, 640)):
        add(identity, nbytes)
    for identity in (0, 2):
        memory.drop(identity)
        del rows[identity]
    add(7, 900)  # its pages lie in three places
    assert len(list(memory.parts(7))) > 1
    assert len(memory) == len(rows) == 3
    assert memory.used_bytes == (4 + 5 + 8) * 128
    for identity, expected in rows.items():
        found = torch.empty_like(expected)
        copy_bytes(memory.parts(identity), [found])
        assert torch.equal(found, expected)
    memory.clear()
    assert len(memory) == memory.used_bytes == 0


def test_more_than_the_capacity_is_an_error_of_the_books():
    memory = HostMemory(HostLayout(128), 256, CPU)
    memory.add(1, 256)
    with pytest.raises(StateError, match="room for 2 pages"):
        memory.add(2, 1)
    with pytest.raises(StateError, match="bytes of 1 already"):
        memory.add(1, 1)


def test_memory_that_the_host_does_not_have_is_said(monkeypatch):
    def refuse(*args, **options):
        raise RuntimeError("CUDA error: out of memory")

    memory = HostMemory(HostLayout(128), None, CPU)
    monkeypatch.setattr(torch, "empty", refuse)
    with pytest.raises(CapacityError, match="lower --cache-memory"):
        memory.add(1, 1)


def cuts(total):
    return st.lists(st.integers(0, total), max_size=6).map(
        lambda places: [b - a for a, b in pairwise([0, *sorted(places), total])]
    )


@given(data=st.data(), total=st.integers(1, 300))
def test_bytes_pass_through_parts_of_any_sizes(data, total):
    bytes_ = torch.arange(total).remainder(251).to(torch.uint8)
    sources = bytes_.split([n for n in data.draw(cuts(total)) if n])
    targets = [torch.zeros(n, dtype=torch.uint8) for n in data.draw(cuts(total)) if n]
    copy_bytes(sources, targets)
    assert torch.equal(torch.cat(targets), bytes_)
