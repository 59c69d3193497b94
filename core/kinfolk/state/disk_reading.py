"""Reading a point of the disk tier into memory, in parts side by side. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final

from kinfolk.state.chain_hash import paged_root
from kinfolk.state.disk_files import EntryFile, open_chunk, open_point
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

READERS: Final = 8
"""Parts of a point that are read and checked at once: checksums are slower than the disk."""


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
    last = [place for place in request.blocks if place[1] == full]
    chain = [paged_root(root, point.paging), *point.chain]
    places = sorted(request.blocks.keys() - last, key=lambda place: place[1])
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open_point(folder.point(point.key), folder.salt, point.key))
            own = _read_own(file, request, last)
        except (DamagedFile, OSError) as error:
            raise UnreadableEntry(error) from error
        if own is None:
            return False
        # They have ended when the file is closed.
        readers = stack.enter_context(ThreadPoolExecutor(READERS, "kinfolk-disk-read"))
        stack.callback(readers.shutdown, cancel_futures=True)
        parts = [readers.submit(part) for part in own]
        chunks = [readers.submit(_read_chunk, folder, request, chain, *place) for place in places]
        for done in parts:
            _result(done)
        for place, done in zip(places, chunks, strict=True):
            _result(done, (chain[place[1] + 1], place[0]))
            request.arrived(*place)
    return True


def _result(done: Future[None], chunk: tuple[int, int] | None = None) -> None:
    try:
        done.result()
    except (DamagedFile, OSError) as error:
        raise UnreadableEntry(error, chunk) from error


def _read_own(
    file: EntryFile, request: PointRead, last: list[tuple[int, int]]
) -> list[Callable[[], None]] | None:
    """Read what is in the point's own file but for the recurrent state; the calls that read that,
    or ``None`` if the point is of other tokens."""
    point, header = request.point, file.header
    if bytes(file.tokens()) != request.packed[: point.length * TOKEN_BYTES]:
        return None
    stored = header.section(RECURRENT_SECTION)
    if (stored is None) != (request.recurrent is None) or header.tensors != request.tensors:
        raise DamagedFile("it has other recurrent state than the model")
    if request.residency is not None:
        file.read(RESIDENCY_SECTION, 0, memoryview(request.residency))
    for pool, number in last:
        file.read(BLOCK_SECTION, pool, request.blocks[pool, number])
        request.arrived(pool, number)
    if request.recurrent is None:
        return []
    return file.parts(RECURRENT_SECTION, 0, request.recurrent)


def _read_chunk(
    folder: SaltFolder, request: PointRead, chain: Sequence[int], pool: int, number: int
) -> None:
    key = chain[number + 1]
    with open_chunk(folder.chunk(key, pool), folder.salt, key, pool) as file:
        if file.header.parent != chain[number]:
            raise DamagedFile("it follows another chunk")
        file.tokens()
        file.read(BLOCK_SECTION, pool, request.blocks[pool, number])
