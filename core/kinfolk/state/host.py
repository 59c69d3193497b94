"""Rows of state in host memory: slabs that are allocated once, and pages of them handed out.

The memory is pinned where a device copies from and to it. A row takes pages from anywhere; pages
side by side are copied at once. All copies run on one stream, one after the other, so a page may be
handed out again as soon as it is free; only the CPU must not touch one whose copy is pending.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from kinfolk.errors import StateError
from kinfolk.state.host_rows import HostLayout
from kinfolk.state.slabs import Slabs


class HostMemory:
    """Up to ``capacity`` bytes (``None``: no limit) for rows by identity."""

    def __init__(self, layout: HostLayout, capacity: int | None, device: torch.device) -> None:
        self._page_bytes = layout.page_bytes
        self._slab_pages = layout.slab_pages(capacity)
        self._most_pages = layout.pages_in(capacity)
        self._source = Slabs(self._slab_pages * self._page_bytes, device)
        self._ahead_pages = layout.pages_ahead
        self._slabs: list[torch.Tensor] = []
        # The last is handed out next.
        self._free: list[int] = []
        self._rows: dict[int, list[int]] = {}
        self._parts: dict[int, tuple[torch.Tensor, ...]] = {}
        self._make_ahead()

    def __len__(self) -> int:
        """Rows."""
        return len(self._rows)

    def __contains__(self, identity: int) -> bool:
        return identity in self._rows

    @property
    def used_bytes(self) -> int:
        pages = len(self._slabs) * self._slab_pages - len(self._free)
        return pages * self._page_bytes

    def add(self, identity: int, nbytes: int) -> None:
        """Make room for a row. Raises :class:`CapacityError` if the host has no memory for it."""
        if identity in self._rows:
            raise StateError(f"the host holds bytes of {identity} already")
        pages = -(-nbytes // self._page_bytes)
        while len(self._free) < pages:
            self._grow()
        self._rows[identity] = [self._free.pop() for _ in range(pages)]

    def drop(self, identity: int) -> None:
        self._free += reversed(self._rows.pop(identity))
        self._parts.pop(identity, None)

    def clear(self) -> None:
        """Drop all rows; the slabs stay."""
        for identity in list(self._rows):
            self.drop(identity)

    def expect(self, pages: int) -> None:
        """Rows of so many pages may be added at once: have memory for them ahead."""
        self._ahead_pages = max(self._ahead_pages, pages)
        self._make_ahead()

    def parts(self, identity: int) -> tuple[torch.Tensor, ...]:
        """The bytes of a row, uint8 [n] each, in as few parts as its pages allow; made once."""
        if identity not in self._parts:
            self._parts[identity] = tuple(self._parts_of(self._rows[identity]))
        return self._parts[identity]

    def _parts_of(self, pages: list[int]) -> Iterator[torch.Tensor]:
        start, size = 0, self._page_bytes
        while start < len(pages):
            stop, (slab, page) = start + 1, divmod(pages[start], self._slab_pages)
            while stop < len(pages) and pages[stop] == pages[start] + stop - start:
                if pages[stop] % self._slab_pages == 0:
                    break
                stop += 1
            yield self._slabs[slab][page * size : (page + stop - start) * size]
            start = stop

    def _grow(self) -> None:
        first = len(self._slabs) * self._slab_pages
        if self._most_pages is not None and first + self._slab_pages > self._most_pages:
            raise StateError(f"host memory has room for {self._most_pages} pages, more were asked")
        self._slabs.append(self._source.take())
        self._free[:0] = range(first + self._slab_pages - 1, first - 1, -1)
        self._make_ahead()

    def _make_ahead(self) -> None:
        """As much as there is, so that rows which come in a row do not wait for memory."""
        if self._slab_pages == 0:
            return
        count = max(-(-self._ahead_pages // self._slab_pages), len(self._slabs))
        if self._most_pages is not None:
            count = min(count, self._most_pages // self._slab_pages - len(self._slabs))
        self._source.make_ahead(count)


def copy_bytes(sources: Iterable[torch.Tensor], targets: Iterable[torch.Tensor]) -> None:
    """Copy the bytes of ``sources``, one after the other, to ``targets``, uint8 [n] all of them.
    The longer side is not filled or read to its end. The host does not wait."""
    ins, outs = iter(sources), iter(targets)
    source, target = next(ins, None), next(outs, None)
    read, written = [], []
    while source is not None and target is not None:
        size = min(source.numel(), target.numel())
        read.append(_first_bytes(source, size))
        written.append(_first_bytes(target, size))
        source = source[size:] if size < source.numel() else next(ins, None)
        target = target[size:] if size < target.numel() else next(outs, None)
    if read:
        # One call: each copy of a hundred would take Python longer than the driver.
        torch._foreach_copy_(written, read, non_blocking=True)


def _first_bytes(part: torch.Tensor, size: int) -> torch.Tensor:
    """Mostly all of them: then no view is made."""
    return part if part.numel() == size else part[:size]
