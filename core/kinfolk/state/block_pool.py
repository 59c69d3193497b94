"""Blocks of one pool: the free list, and references to the chunks that blocks hold. Torch-free."""

from __future__ import annotations

from kinfolk.state.chunks import Chunk
from kinfolk.state.operations import DropSaved, LoadBlock, OperationLog, SaveBlock
from kinfolk.types import DUMMY


class BlockPool:
    """Pool ``index`` of ``size`` blocks. A chunk's block is free again with its last reference.

    ``free`` lists free blocks; the last one is allocated next. ``references`` counts the tables and
    checkpoints that hold the chunks of all blocks.
    """

    def __init__(self, index: int, size: int, window: int | None, operations: OperationLog) -> None:
        self.index = index
        self.size = size
        self.window = window
        self.free = list(range(size, DUMMY, -1))
        self.references = 0
        self._operations = operations

    @property
    def unshared(self) -> int:
        """Free blocks, less those that holders of shared chunks of a windowed pool will need.

        A shared block is charged to all holders but one: when the window of one holder moves on,
        it needs a new block although none became free.
        """
        if self.window is None:
            return len(self.free)
        return len(self.free) - (self.references - (self.size - len(self.free)))

    def allocate(self, identity: int, *, exact: bool) -> Chunk:
        """A new chunk in a free block, held once; the caller has checked that there is one."""
        chunk = Chunk(identity, self.free.pop(), exact=exact)
        self.hold(chunk)
        return chunk

    def hold(self, chunk: Chunk) -> None:
        """Add a table or checkpoint that holds a resident chunk."""
        self._refer(chunk)
        chunk.owners += 1

    def release(self, chunk: Chunk, *, resident: bool) -> None:
        """End one holding; ``resident`` is false for a table that the chunk was evicted from."""
        chunk.owners -= 1
        if resident:
            self.unload(chunk)
        if chunk.owners == 0 and chunk.saved:
            self._operations.append(DropSaved(chunk.identity))
            chunk.saved = False

    def unload(self, chunk: Chunk) -> None:
        """Remove one reference; the last one frees the block.

        The bytes are saved on the host while the chunk still has an owner that may load them.
        """
        chunk.refs -= 1
        self.references -= 1
        if chunk.refs == 0:
            if chunk.owners and not chunk.saved:
                self._operations.append(SaveBlock(self.index, chunk.block, chunk.identity))
                chunk.saved = True
            self.free.append(chunk.block)
            chunk.block = DUMMY

    def load(self, chunk: Chunk) -> None:
        """Refer to an evicted chunk again; saved bytes return to a free block if need be."""
        if chunk.refs == 0:
            chunk.block = self.free.pop()
            self._operations.append(LoadBlock(self.index, chunk.identity, chunk.block))
        self._refer(chunk)

    def _refer(self, chunk: Chunk) -> None:
        chunk.refs += 1
        self.references += 1
