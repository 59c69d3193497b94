"""The books of host memory: how many rows of state it has room for. Torch-free.

A row is what one block or the recurrent state of one slot takes. Rows lie in pages of one size, so
rows of all pools share the memory whatever their sizes are, and no room is lost between them.
"""

from __future__ import annotations

from dataclasses import dataclass

from kinfolk.errors import StateError
from kinfolk.plans import StatePlan
from kinfolk.state.layout import SECTION_ALIGNMENT_BYTES, pool_layouts, slot_bytes
from kinfolk.types import CHUNK_POSITIONS

SLAB_BYTES = 8 * 2**20
"""Bytes of host memory that are allocated at once, and pinned in milliseconds: a power of two."""

ROWS_AHEAD = 2
"""Recurrent states that there is host memory for before one leaves the device."""

LARGEST_PAGE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class HostLayout:
    """Bytes of a page, and the pages of a row: of a block of each pool, and of recurrent state."""

    page_bytes: int = SECTION_ALIGNMENT_BYTES
    block_pages: tuple[int, ...] = ()
    recurrent_pages: int = 0

    @classmethod
    def of(cls, plan: StatePlan) -> HostLayout:
        """The smallest row is a few whole pages; larger ones waste less than a page each."""
        blocks, recurrent = [each.block_bytes for each in pool_layouts(plan)], slot_bytes(plan)
        smallest = min(blocks, default=recurrent)
        page = _rounded_up(_divided(smallest, max(1, _divided(smallest, LARGEST_PAGE_BYTES))))
        return cls(page, tuple(_divided(n, page) for n in blocks), _divided(recurrent, page))

    @classmethod
    def counting_rows(cls, pools: int) -> HostLayout:
        """For books without tensors: every row is one page."""
        return cls(block_pages=(1,) * pools, recurrent_pages=1)

    def slab_pages(self, capacity: int | None) -> int:
        """Pages of a slab, if there are ``capacity`` bytes."""
        return _slab_bytes(capacity) // self.page_bytes

    @property
    def pages_ahead(self) -> int:
        """Pages of ``ROWS_AHEAD`` recurrent states and as many blocks of each pool."""
        return ROWS_AHEAD * (self.recurrent_pages + sum(self.block_pages))

    def prefix_pages(self, positions: int) -> int:
        """Most pages of a prefix of so many positions: its state and all its blocks."""
        return self.recurrent_pages + _divided(positions, CHUNK_POSITIONS) * sum(self.block_pages)

    def pages_in(self, capacity: int | None) -> int | None:
        """Pages of ``capacity`` bytes, which are allocated in whole slabs; ``None``: no limit."""
        if capacity is None or capacity == 0:
            return capacity
        return capacity // _slab_bytes(capacity) * self.slab_pages(capacity)


class HostRows:
    """Room in host memory, charged when something that is not on the device has an owner.

    ``used`` counts pages and ``rows`` rows; ``promised`` are pages that paged sequences will use.
    """

    def __init__(self, layout: HostLayout, capacity: int | None = None) -> None:
        self.layout = layout
        self.pages = layout.pages_in(capacity)
        self.used = 0
        self.rows = 0
        self.promised = 0

    @property
    def used_bytes(self) -> int:
        return self.used * self.layout.page_bytes

    def fits(self, pages: int) -> bool:
        """Whether there is room for so many more pages; for a negative number there always is."""
        return self.pages is None or pages <= max(0, self.pages - self.used - self.promised)

    def charge(self, pages: int) -> None:
        self.used += pages
        self.rows += 1

    def discharge(self, pages: int) -> None:
        if pages > self.used:
            raise StateError(f"{pages} pages of host memory cannot be given back: {self.used} used")
        self.used -= pages
        self.rows -= 1


def _slab_bytes(capacity: int | None) -> int:
    if capacity is None or capacity >= SLAB_BYTES:
        return SLAB_BYTES
    return 1 << (capacity.bit_length() - 1) if capacity else 0


def _divided(amount: int, by: int) -> int:
    """Rounded up."""
    return -(-amount // by)


def _rounded_up(nbytes: int) -> int:
    aligned = max(1, _divided(nbytes, SECTION_ALIGNMENT_BYTES))
    return aligned * SECTION_ALIGNMENT_BYTES
