"""Blocks of one pool: the free list, and references to the chunks that blocks hold. Torch-free.

A chunk with an owner that does not refer to it on the device is charged a row of host memory, also
while its bytes are still on the device for others: with the last reference they are saved there.
"""

from __future__ import annotations

from collections import deque

from kinfolk.state.chunks import NO_DIGEST, Chunk
from kinfolk.state.digest_places import DigestPlaces
from kinfolk.state.host_rows import HostRows
from kinfolk.state.operations import DropSaved, LoadBlock, OperationLog, SaveBlock
from kinfolk.types import DUMMY


class BlockPool:
    """Pool ``index`` of ``size`` blocks. A chunk's block is free again with its last reference.

    ``free`` lists free blocks; the last one is allocated next. One whose bytes are being copied to
    host memory comes first, since who writes it waits for the copy. ``references`` counts the
    tables that may give up chunks of blocks, and once for each chunk all others that hold it:
    tables that never do, and checkpoints; ``kept`` counts the blocks of those. ``digests`` are the
    places for compressed keys, if chunks are scored by them.
    """

    def __init__(
        self,
        index: int,
        size: int,
        window: int | None,
        operations: OperationLog,
        host: HostRows,
        digests: DigestPlaces | None = None,
    ) -> None:
        self.index = index
        self.size = size
        self.window = window
        self.free = deque(range(size, DUMMY, -1))
        self.references = 0
        self.kept = 0
        self.row_pages = host.layout.block_pages[index]
        self._operations = operations
        self._host = host
        self._digests = digests

    @property
    def unshared(self) -> int:
        """Free blocks, less those that holders of shared chunks will need.

        A shared block is charged to all holders but one: when the window of a sequence moves on, or
        a paged one evicts a chunk, it needs a new block although none became free. Those who never
        give up a chunk are one holder however many they are.
        """
        return len(self.free) - (self.references - (self.size - len(self.free)))

    def allocate(self, identity: int, *, exact: bool, paged: bool = False) -> Chunk:
        """A new chunk in a free block, held once; the caller has checked that there is one."""
        chunk = Chunk(identity, self.free.pop(), owners=1, exact=exact, pagers=int(paged))
        self._refer(chunk, movable=self._moves(paged))
        return chunk

    def hold(self, chunk: Chunk, *, paged: bool = False) -> None:
        """Add a table that holds a chunk; one that is not on the device is loaded."""
        chunk.owners += 1
        chunk.pagers += paged
        self.load(chunk, paged=paged)

    def hold_away(self, chunk: Chunk) -> None:
        """Add the table of a paged sequence that owns a full chunk and does not see it."""
        chunk.owners += 1
        chunk.pagers += 1
        self.seal(chunk)

    def seal(self, chunk: Chunk) -> None:
        """Save a full chunk of a paged sequence, once. From then on, evicting it costs nothing."""
        self._save(chunk)
        self._settle(chunk)

    def digest(self, chunk: Chunk, first: Chunk) -> None:
        """Compress the keys of a full chunk of a paged sequence, once. ``first`` is the first chunk
        of the sequence. A chunk that is not on the device comes to a free block for as long as it
        takes; without one it gets no digest."""
        away = not chunk.refs
        if self._digests is None or chunk.digest != NO_DIGEST or not first.refs:
            return
        if away and not self.free:
            return
        if away:
            self.load(chunk, paged=True)
        self._digests.give(chunk, first.block)
        if away:
            self.unload(chunk, paged=True)

    def keep(self, chunk: Chunk) -> None:
        """Add a checkpoint that holds a resident chunk."""
        chunk.owners += 1
        chunk.kept += 1
        self.kept += chunk.kept == 1
        self._refer(chunk, movable=False)

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
        self._forget_copy(chunk)
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

    def release(self, chunk: Chunk, *, resident: bool, paged: bool = False) -> None:
        """End the holding of a table; ``resident`` is false if it does not refer to the chunk."""
        chunk.owners -= 1
        chunk.pagers -= paged
        if resident:
            self.unload(chunk, paged=paged)
        if paged:
            self._forget_copy(chunk)
        self._settle(chunk)

    def unload(self, chunk: Chunk, *, paged: bool = False) -> None:
        """Remove the reference of a table; the last reference frees the block.

        The bytes are saved on the host while the chunk still has an owner that may load them.
        """
        self._unrefer(chunk, movable=self._moves(paged))

    def load(self, chunk: Chunk, *, paged: bool = False) -> None:
        """Refer to a chunk of which the caller is an owner; saved bytes return to a free block if
        need be, and the caller has checked that there is one."""
        if chunk.refs == 0:
            chunk.block = self.free.pop()
            self._operations.append(LoadBlock(self.index, chunk.identity, chunk.block))
        self._refer(chunk, movable=self._moves(paged))
        self._settle(chunk)

    def _moves(self, paged: bool) -> bool:
        """Whether a table may give up chunks of this pool."""
        return paged or self.window is not None

    def _refer(self, chunk: Chunk, *, movable: bool) -> None:
        # Each who may give the chunk up counts, and once all who do not.
        self.references += movable or chunk.refs == chunk.movable
        chunk.refs += 1
        chunk.movable += movable

    def _unkeep(self, chunk: Chunk) -> None:
        chunk.kept -= 1
        self.kept -= chunk.kept == 0
        self._unrefer(chunk, movable=False)

    def _forget_copy(self, chunk: Chunk) -> None:
        """Drop saved bytes that all owners have on the device, if none may evict them."""
        if chunk.saved and 0 < chunk.owners == chunk.refs and not chunk.pagers:
            self._operations.append(DropSaved(chunk.identity))
            chunk.saved = False

    def _unrefer(self, chunk: Chunk, *, movable: bool) -> None:
        chunk.refs -= 1
        chunk.movable -= movable
        self.references -= movable or chunk.refs == chunk.movable
        if chunk.refs == 0:
            # Nobody appends to it any more: only a table does, and only to a chunk it refers to.
            put = self.free.append
            if chunk.owners and not chunk.saved:
                self._save(chunk)
                put = self.free.appendleft
            put(chunk.block)
            chunk.block = DUMMY
        self._settle(chunk)

    def _save(self, chunk: Chunk) -> None:
        if not chunk.saved:
            self._operations.append(SaveBlock(self.index, chunk.block, chunk.identity))
            chunk.saved = True

    def _settle(self, chunk: Chunk) -> None:
        """Forget the bytes of a chunk without owners, and count its row of host memory or not."""
        if chunk.owners == 0:
            if chunk.saved:
                self._operations.append(DropSaved(chunk.identity))
                chunk.saved = False
            if self._digests is not None:
                self._digests.take_back(chunk)
        wanted = chunk.saved or chunk.owners > chunk.refs
        if wanted != chunk.charged:
            chunk.charged = wanted
            if wanted:
                self._host.charge(self.row_pages)
            else:
                self._host.discharge(self.row_pages)
