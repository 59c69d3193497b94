"""What the disk tier is asked to write and to read. Torch-free."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kinfolk.state.chain_hash import next_hash, paged_root
from kinfolk.state.disk_files import Scattered
from kinfolk.state.disk_folder import NAME_RULE_ON_DISK, PointInfo, is_name
from kinfolk.state.disk_format import PointTensor, residency_bytes
from kinfolk.state.hashed_tokens import CHUNK_BYTES, TOKEN_BYTES
from kinfolk.types import CHUNK_POSITIONS

Blocks = Mapping[tuple[int, int], Scattered]
"""The bytes of a block by pool and number of its chunk in the sequence."""


@dataclass(frozen=True, slots=True)
class PointWrite:
    """A point to write: the state after ``length`` tokens.

    ``packed`` are the tokens (or more), int64 side by side; ``chain[n]`` is the hash of the first n
    chunks, as in ``HashedTokens``. ``first``: the first chunk that the point needs of each pool.
    ``blocks`` has all chunks from there on that the disk lacks (:meth:`DiskCache.missing`), and the
    last one if it is not full. ``recurrent`` are the bytes of ``tensors``. ``paging`` says what the
    sequence was paged by, if it missed something, and ``residency`` what it saw. All memory must
    stay as it is until the write is done.
    """

    packed: bytes
    chain: Sequence[int]
    length: int
    first: tuple[int, ...]
    blocks: Blocks
    recurrent: Scattered | None = None
    tensors: tuple[PointTensor, ...] = ()
    name: str = ""
    paging: str = ""
    residency: bytes = b""

    def check(self, root: int) -> None:
        """Raise :class:`ValueError` for a mistake of the caller; ``root`` is that of the cache."""
        if self.chain[0] != paged_root(root, self.paging):
            raise ValueError("the tokens were hashed with another root than that of the cache")
        if not 0 < self.length <= len(self.packed) // TOKEN_BYTES:
            raise ValueError(f"no point can be after {self.length} of the tokens")
        if self.name and not is_name(self.name):
            raise ValueError(f"{self.name!r} is no name: {NAME_RULE_ON_DISK}")
        if len(self.residency) != (residency_bytes(self.length) if self.paging else 0):
            raise ValueError(f"{len(self.residency)} bytes are not what a sequence saw")
        full, rest = divmod(self.length, CHUNK_POSITIONS)
        if rest and any((pool, full) not in self.blocks for pool in range(len(self.first))):
            raise ValueError(f"the chunk that is not full, {full}, is missing")


@dataclass(frozen=True, slots=True)
class PointRead:
    """A point to read into memory: ``recurrent``, which is to hold ``tensors``, ``residency`` of a
    point that was paged, and each of ``blocks`` have the size of what is read.

    ``packed`` are the tokens of a prompt, which must begin with those of the point. Chunks that
    memory has already may be left out of ``blocks``. ``arrived`` is called with pool and number of
    each chunk as soon as its bytes are there and checked; what has arrived before an error is
    right.
    """

    point: PointInfo
    packed: bytes
    blocks: Blocks
    recurrent: Scattered | None = None
    tensors: tuple[PointTensor, ...] = ()
    residency: bytearray | None = None
    arrived: Callable[[int, int], None] = lambda pool, number: None


@dataclass(frozen=True, slots=True)
class StoreReport:
    """What became of a write. ``known``: the point was there. ``nbytes`` were written. ``reason``
    says why a point was dropped, and ``kind`` in a word: the ``limit`` leaves no room, the disk is
    ``full``, or empty for anything else; ``missing`` are the pool and number of chunks that it
    lacked, because another process removed them: with their bytes it can be tried again."""

    outcome: Literal["stored", "known", "dropped"]
    point: PointInfo | None = None
    nbytes: int = 0
    reason: str = ""
    kind: str = ""
    missing: tuple[tuple[int, int], ...] = ()


def point_hash(chain: Sequence[int], packed: bytes, length: int) -> int:
    """The hash of the point after ``length`` tokens: of its full chunks, and the tokens behind."""
    full = length // CHUNK_POSITIONS
    return next_hash(chain[full], packed[full * CHUNK_BYTES : length * TOKEN_BYTES])
