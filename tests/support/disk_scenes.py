"""A disk cache with made-up state: all bytes follow from hashes, so that any process can check
what it reads."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kinfolk.state.cache_salt import SaltRecord
from kinfolk.state.chain_hash import chunk_hashes, root
from kinfolk.state.disk import DiskCache
from kinfolk.state.disk_folder import PointInfo
from kinfolk.state.disk_format import PointTensor
from kinfolk.state.disk_requests import PointRead, PointWrite, StoreReport, point_hash
from kinfolk.state.geometry import chunks_for, first_visible_chunk
from kinfolk.state.hashed_tokens import CHUNK_BYTES
from kinfolk.types import CHUNK_POSITIONS

RECORD = SaltRecord("toy", "a" * 32, "b" * 16, 512, "bf16 int8", version="1")
LARGE = 1 << 40


def made_up(nbytes: int, *seeds: int) -> memoryview:
    """Bytes that follow from the seeds."""
    values = [seed % 2**63 for seed in seeds] + [seed >> 63 for seed in seeds]
    return np.random.default_rng(values).integers(0, 256, nbytes, dtype=np.uint8).data


@dataclass
class ToyDisk:
    """A cache for a model with pools of these windows and blocks of so many bytes."""

    folder: Path
    limit: int = LARGE
    record: SaltRecord = RECORD
    windows: tuple[int | None, ...] = (None, 100)
    block_bytes: tuple[int, ...] = (3000, 500)
    recurrent_bytes: int = 2000
    cache: DiskCache = field(init=False)

    def __post_init__(self) -> None:
        self.cache = self.reopened()

    def reopened(self) -> DiskCache:
        """The cache as another process sees it."""
        return DiskCache.open(self.folder, self.record, self.limit)

    @property
    def tensors(self) -> tuple[PointTensor, ...]:
        return (PointTensor(3, "state", "f32", (self.recurrent_bytes // 4,), 0),)

    def hashed(self, tokens: Sequence[int]) -> tuple[bytes, list[int]]:
        packed = array("q", tokens).tobytes()
        above = root(self.record.salt)
        return packed, [above, *chunk_hashes(above, packed, CHUNK_BYTES)]

    def first(self, length: int) -> tuple[int, ...]:
        return tuple(first_visible_chunk(window, length) for window in self.windows)

    def places(self, length: int) -> Iterator[tuple[int, int]]:
        for pool, first in enumerate(self.first(length)):
            for number in range(first, chunks_for(length)):
                yield pool, number

    def block(self, chain: Sequence[int], key: int, pool: int, number: int) -> memoryview:
        """The bytes of a chunk, or of the last one of a point if it is not full."""
        whose = chain[number + 1] if number + 1 < len(chain) else key
        return made_up(self.block_bytes[pool], whose, pool)

    def recurrent(self, key: int) -> memoryview | None:
        return made_up(self.recurrent_bytes, key, 99) if self.recurrent_bytes else None

    def entry(
        self, tokens: Sequence[int], *, name: str = "", only: set[tuple[int, int]] | None = None
    ) -> PointWrite:
        """The point after all tokens; ``only``: the full chunks whose bytes are there."""
        packed, chain = self.hashed(tokens)
        key = point_hash(chain, packed, len(tokens))
        full = len(tokens) // CHUNK_POSITIONS
        return PointWrite(
            packed=packed,
            chain=chain,
            length=len(tokens),
            first=self.first(len(tokens)),
            blocks={
                (pool, number): self.block(chain, key, pool, number)
                for pool, number in self.places(len(tokens))
                if only is None or (pool, number) in only or number == full
            },
            recurrent=self.recurrent(key),
            tensors=self.tensors,
            name=name,
        )

    def store(self, tokens: Sequence[int], name: str = "") -> StoreReport:
        return self.cache.store(self.entry(tokens, name=name))

    def request(self, point: PointInfo, tokens: Sequence[int]) -> PointRead:
        packed, _ = self.hashed(tokens)
        blocks = {
            (pool, number): memoryview(bytearray(self.block_bytes[pool]))
            for pool, number in self.places(point.length)
        }
        recurrent = memoryview(bytearray(self.recurrent_bytes)) if self.recurrent_bytes else None
        return PointRead(point, packed, blocks, recurrent, self.tensors)

    def right(self, request: PointRead, tokens: Sequence[int]) -> bool:
        """Whether everything that was read is what was written."""
        point = request.point
        _, chain = self.hashed(tokens[: point.length])
        state = self.recurrent(point.key)
        return (request.recurrent == state) and all(
            target == self.block(chain, point.key, pool, number)
            for (pool, number), target in request.blocks.items()
        )

    def found(self, tokens: Sequence[int], cache: DiskCache | None = None) -> PointInfo | None:
        """The longest point that the tokens begin with."""
        packed, chain = self.hashed(tokens)
        return (cache or self.cache).find(packed, chain, len(tokens))

    def restores(self, tokens: Sequence[int], cache: DiskCache | None = None) -> int:
        """Tokens that the longest point has, once it was read and compared; 0 if there is none or
        it cannot be read. Bytes that are not those that were written are an error."""
        used = cache or self.cache
        point = self.found(tokens, used)
        if point is None:
            return 0
        request = self.request(point, tokens)
        if not used.read(request):
            return 0
        assert self.right(request, tokens), "other bytes were read than were written"
        return point.length


def text(length: int, seed: int = 0) -> list[int]:
    """Tokens that agree with those of another length and the same seed."""
    return [seed * 1_000_003 + position for position in range(length)]


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def nbytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in files(folder))
