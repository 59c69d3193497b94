"""Blocks of one pool: the free list, and references to the chunks that blocks hold. Torch-free."""

from __future__ import annotations

from kinfolk.state.chunks import Chunk
from kinfolk.state.operations import DropSaved, LoadBlock, OperationLog, SaveBlock
from kinfolk.types import DUMMY


class BlockPool:
    """Pool ``index`` of ``size`` blocks. A chunk's block is free again with its last reference.

    ``free`` lists free blocks; the last one is allocated next. ``references`` counts the tables
    that hold chunks of blocks, and once for each chunk the checkpoints that do.
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

        A shared block is charged to all holders but one: when the window of a sequence moves on, it
        needs a new block although none became free. Checkpoints do not move on: they are one holder
        however many they are.
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
        """Add a table that holds a resident chunk."""
        self._refer(chunk)
        chunk.owners += 1

    def keep(self, chunk: Chunk) -> None:
        """Add a checkpoint that holds a resident chunk."""
        chunk.refs += 1
        chunk.owners += 1
        chunk.kept += 1
        self.references += chunk.kept == 1

    def drop(self, chunk: Chunk) -> None:
        """End the holding of a checkpoint."""
        chunk.kept -= 1
        self.references -= chunk.kept == 0
        chunk.owners -= 1
        self._unrefer(chunk)
        self._forget_unowned(chunk)

    def release(self, chunk: Chunk, *, resident: bool) -> None:
        """End the holding of a table; ``resident`` is false if it evicted the chunk."""
        chunk.owners -= 1
        if resident:
            self.unload(chunk)
        self._forget_unowned(chunk)

    def unload(self, chunk: Chunk) -> None:
        """Remove the reference of a table; the last reference frees the block.

        The bytes are saved on the host while the chunk still has an owner that may load them.
        """
        self.references -= 1
        self._unrefer(chunk)

    def load(self, chunk: Chunk) -> None:
        """Refer to an evicted chunk again; saved bytes return to a free block if need be."""
        if chunk.refs == 0:
            chunk.block = self.free.pop()
            self._operations.append(LoadBlock(self.index, chunk.identity, chunk.block))
        self._refer(chunk)

    def _refer(self, chunk: Chunk) -> None:
        chunk.refs += 1
        self.references += 1

    def _unrefer(self, chunk: Chunk) -> None:
        chunk.refs -= 1
        if chunk.refs == 0:
            if chunk.owners and not chunk.saved:
                self._operations.append(SaveBlock(self.index, chunk.block, chunk.identity))
                chunk.saved = True
            self.free.append(chunk.block)
            chunk.block = DUMMY

    def _forget_unowned(self, chunk: Chunk) -> None:
        if chunk.owners == 0 and chunk.saved:
            self._operations.append(DropSaved(chunk.identity))
            chunk.saved = False
