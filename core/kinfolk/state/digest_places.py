"""Places for compressed keys of chunks: they belong to the chunk, wherever it is. Torch-free."""

from __future__ import annotations

from kinfolk.errors import PoolExhausted
from kinfolk.state.chunks import NO_DIGEST, Chunk
from kinfolk.state.operations import DigestChunk, OperationLog


class DigestPlaces:
    """``size`` places, and the chunks that hold them, the longest holder first.

    There are as many as paged sequences can have chunks (:attr:`StateLimits.digests`), so a chunk
    of a paged sequence gets one whenever it is full. Chunks that only stored prefixes own keep
    theirs until another chunk needs it.
    """

    def __init__(self, size: int, operations: OperationLog) -> None:
        self.size = size
        self.free = list(range(size - 1, -1, -1))
        self.holders: dict[int, Chunk] = {}
        self._operations = operations

    def give(self, chunk: Chunk, first: int) -> None:
        """Compress a full chunk that is on the device, unless it has been. ``first`` is the block
        of the first chunk of its sequence."""
        if chunk.digest != NO_DIGEST:
            return
        chunk.digest = self.free.pop() if self.free else self._taken()
        self.holders[chunk.digest] = chunk
        self._operations.append(DigestChunk(chunk.block, first, chunk.digest))

    def take_back(self, chunk: Chunk) -> None:
        """The chunk needs its place no more."""
        if chunk.digest != NO_DIGEST:
            self.free.append(chunk.digest)
            del self.holders[chunk.digest]
            chunk.digest = NO_DIGEST

    def forget(self) -> None:
        """What the places hold is lost."""
        for chunk in list(self.holders.values()):
            self.take_back(chunk)

    def _taken(self) -> int:
        """The place of the longest holder that no paged sequence owns."""
        for place, chunk in self.holders.items():
            if not chunk.pagers:
                chunk.digest = NO_DIGEST
                del self.holders[place]
                return place
        raise PoolExhausted(f"all {self.size} places for compressed keys are in use")
