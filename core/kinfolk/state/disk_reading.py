"""Reading a point of the disk tier into memory, chunk by chunk. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from kinfolk.state.chain_hash import paged_root
from kinfolk.state.disk_files import open_chunk, open_point
from kinfolk.state.disk_folder import SaltFolder
from kinfolk.state.disk_format import (
    BLOCK_SECTION,
    RECURRENT_SECTION,
    RESIDENCY_SECTION,
    DamagedFile,
)
from kinfolk.state.disk_requests import PointRead
from kinfolk.state.hashed_tokens import TOKEN_BYTES
from kinfolk.types import CHUNK_POSITIONS

READERS: Final = 4
"""Chunks of a point that are read and checked at once: checksums are slower than the disk."""


class UnreadableEntry(Exception):
    """A point cannot be read because of ``error``: in its own file, or in that of ``chunk``, hash
    and pool."""

    def __init__(self, error: DamagedFile | OSError, chunk: tuple[int, int] | None = None) -> None:
        super().__init__(str(error))
        self.error = error
        self.chunk = chunk


def read_point(folder: SaltFolder, root: int, request: PointRead) -> bool:
    """Read a point; false if it is of other tokens. ``root`` is that of all hashes.

    Raises :class:`UnreadableEntry`. Then, and after false, nothing that was not reported as arrived
    may be used.
    """
    point = request.point
    full = point.length // CHUNK_POSITIONS
    partial = [place for place in request.blocks if place[1] == full]
    try:
        if not _read_own(folder, request, partial):
            return False
    except (DamagedFile, OSError) as error:
        raise UnreadableEntry(error) from error
    chain = [paged_root(root, point.paging), *point.chain]
    places = sorted(request.blocks.keys() - partial, key=lambda place: place[1])
    with ThreadPoolExecutor(READERS, "kinfolk-disk-read") as readers:
        reads = [readers.submit(_read_chunk, folder, request, chain, *place) for place in places]
        for place, done in zip(places, reads, strict=True):
            try:
                done.result()
            except (DamagedFile, OSError) as error:
                readers.shutdown(cancel_futures=True)
                raise UnreadableEntry(error, (chain[place[1] + 1], place[0])) from error
            request.arrived(*place)
    return True


def _read_own(folder: SaltFolder, request: PointRead, partial: list[tuple[int, int]]) -> bool:
    """Read what is in the point's own file."""
    point = request.point
    with open_point(folder.point(point.key), folder.salt, point.key) as file:
        if bytes(file.tokens()) != request.packed[: point.length * TOKEN_BYTES]:
            return False
        stored = file.header.section(RECURRENT_SECTION)
        if (stored is None) != (request.recurrent is None) or (
            file.header.tensors != request.tensors
        ):
            raise DamagedFile("it has other recurrent state than the model")
        if request.recurrent is not None:
            file.read(RECURRENT_SECTION, 0, request.recurrent)
        if request.residency is not None:
            file.read(RESIDENCY_SECTION, 0, memoryview(request.residency))
        for pool, number in partial:
            file.read(BLOCK_SECTION, pool, request.blocks[pool, number])
            request.arrived(pool, number)
    return True


def _read_chunk(
    folder: SaltFolder, request: PointRead, chain: Sequence[int], pool: int, number: int
) -> None:
    key = chain[number + 1]
    with open_chunk(folder.chunk(key, pool), folder.salt, key, pool) as file:
        if file.header.parent != chain[number]:
            raise DamagedFile("it follows another chunk")
        file.tokens()
        file.read(BLOCK_SECTION, pool, request.blocks[pool, number])
