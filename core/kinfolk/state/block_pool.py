"""Blocks of one pool: the free list, and references to the chunks that blocks hold. Torch-free.

A chunk with an owner that does not refer to it on the device is charged a row of host memory, also
while its bytes are still on the device for others: with the last reference they are saved there.
"""

from __future__ import annotations

from kinfolk.state.chunks import Chunk
from kinfolk.state.host_rows import HostRows
from kinfolk.state.operations import DropSaved, LoadBlock, OperationLog, SaveBlock
from kinfolk.types import DUMMY


class BlockPool:
    """Pool ``index`` of ``size`` blocks. A chunk's block is free again with its last reference.

    ``free`` lists free blocks; the last one is allocated next. ``references`` counts the tables
    that hold chunks of blocks, and once for each chunk the checkpoints that do; ``kept`` counts
    the blocks of those.
    """

    def __init__(
        self,
        index: int,
        size: int,
        window: int | None,
        operations: OperationLog,
        host: HostRows,
    ) -> None:
        self.index = index
        self.size = size
        self.window = window
        self.free = list(range(size, DUMMY, -1))
        self.references = 0
        self.kept = 0
        self.row_pages = host.layout.block_pages[index]
        self._operations = operations
        self._host = host

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
        chunk = Chunk(identity, self.free.pop(), owners=1, exact=exact)
        self._refer(chunk)
        return chunk

    def hold(self, chunk: Chunk) -> None:
        """Add a table that holds a chunk; one that is not on the device is loaded."""
        chunk.owners += 1
        self.load(chunk)

    def keep(self, chunk: Chunk) -> None:
        """Add a checkpoint that holds a resident chunk."""
        chunk.refs += 1
        chunk.owners += 1
        chunk.kept += 1
        self.references += chunk.kept == 1
        self.kept += chunk.kept == 1

    def drop(self, chunk: Chunk) -> None:
        """End the holding of a checkpoint that refers to the chunk."""
        chunk.owners -= 1
        self._unkeep(chunk)

    def demote(self, chunk: Chunk) -> None:
        """A checkpoint owns the chunk from now on without referring to it on the device."""
        self._unkeep(chunk)

    def disown(self, chunk: Chunk) -> None:
        """End the holding of a checkpoint that was demoted."""
        chunk.owners -= 1
        self._settle(chunk)

    def pin(self, chunk: Chunk) -> None:
        """Add an owner that needs the bytes in host memory. Nobody appends to the chunk."""
        chunk.owners += 1
        self._save(chunk)
        self._settle(chunk)

    def unpin(self, chunk: Chunk) -> None:
        """End that holding. The host keeps no bytes that all owners have on the device."""
        chunk.owners -= 1
        if chunk.saved and 0 < chunk.owners == chunk.refs:
            self._operations.append(DropSaved(chunk.identity))
            chunk.saved = False
        self._settle(chunk)

    def expect(self, identity: int) -> Chunk:
        """A chunk with an owner whose bytes are going to be read into host memory."""
        chunk = Chunk(identity, DUMMY, owners=1, saved=True)
        self._settle(chunk)
        return chunk

    def copy(self, chunk: Chunk, identity: int) -> Chunk:
        """A chunk with an owner and, in host memory, the bytes that another one has now."""
        self._operations.append(SaveBlock(self.index, chunk.block, identity))
        return self.expect(identity)

    def own(self, chunk: Chunk) -> None:
        """Add a demoted checkpoint that owns the chunk, wherever it is."""
        chunk.owners += 1
        self._settle(chunk)

    def release(self, chunk: Chunk, *, resident: bool) -> None:
        """End the holding of a table; ``resident`` is false if it evicted the chunk."""
        chunk.owners -= 1
        if resident:
            self.unload(chunk)
        else:
            self._settle(chunk)

    def unload(self, chunk: Chunk) -> None:
        """Remove the reference of a table; the last reference frees the block.

        The bytes are saved on the host while the chunk still has an owner that may load them.
        """
        self.references -= 1
        self._unrefer(chunk)

    def load(self, chunk: Chunk) -> None:
        """Refer to a chunk of which the caller is an owner; saved bytes return to a free block if
        need be, and the caller has checked that there is one."""
        if chunk.refs == 0:
            chunk.block = self.free.pop()
            self._operations.append(LoadBlock(self.index, chunk.identity, chunk.block))
        self._refer(chunk)
        self._settle(chunk)

    def fits_host(self, chunk: Chunk) -> bool:
        """Whether the host has room for a chunk that an owner evicts."""
        return chunk.charged or self._host.fits(self.row_pages)

    def _refer(self, chunk: Chunk) -> None:
        chunk.refs += 1
        self.references += 1

    def _unkeep(self, chunk: Chunk) -> None:
        chunk.kept -= 1
        self.references -= chunk.kept == 0
        self.kept -= chunk.kept == 0
        self._unrefer(chunk)

    def _unrefer(self, chunk: Chunk) -> None:
        chunk.refs -= 1
        if chunk.refs == 0:
            # Nobody appends to it any more: only a table does, and only to a chunk it refers to.
            if chunk.owners:
                self._save(chunk)
            self.free.append(chunk.block)
            chunk.block = DUMMY
        self._settle(chunk)

    def _save(self, chunk: Chunk) -> None:
        if not chunk.saved:
            self._operations.append(SaveBlock(self.index, chunk.block, chunk.identity))
            chunk.saved = True

    def _settle(self, chunk: Chunk) -> None:
        """Forget the bytes of a chunk without owners, and count its row of host memory or not."""
        if chunk.owners == 0 and chunk.saved:
            self._operations.append(DropSaved(chunk.identity))
            chunk.saved = False
        wanted = chunk.saved or chunk.owners > chunk.refs
        if wanted and not chunk.charged:
            self._host.charge(self.row_pages)
        elif chunk.charged and not wanted:
            self._host.discharge(self.row_pages)
        chunk.charged = wanted
