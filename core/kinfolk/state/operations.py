"""Changes of state as integers: what a step plan carries and ``State.apply`` executes.

Slots and blocks are indices into device tensors. Recurrent state and its checkpoints share one
slot space, so saving and restoring a checkpoint on the device is one copy between slots. Bytes in
host memory go by the identity of a chunk, or that of a checkpoint for its recurrent state.

Nobody changes an operation. They are not frozen because a choice of chunks makes a hundred of them,
and a frozen one takes three times as long to make.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True, unsafe_hash=True)
class ClearSlot:
    """Start a sequence: empty tables, zero recurrent state."""

    slot: int


@dataclass(slots=True, unsafe_hash=True)
class MapChunk:
    """Enter ``block`` as the place of logical ``chunk`` in the slot's table."""

    pool: int
    slot: int
    chunk: int
    block: int


@dataclass(slots=True, unsafe_hash=True)
class UnmapChunk:
    """Take a chunk out of the slot's table: evicted, or passed by the window."""

    pool: int
    slot: int
    chunk: int


@dataclass(slots=True, unsafe_hash=True)
class CopyBlock:
    """Copy a block's bytes, when a fork needs a partial chunk of its own."""

    pool: int
    source: int
    target: int


@dataclass(slots=True, unsafe_hash=True)
class CopyRecurrent:
    """Copy all recurrent tensors of a slot: fork, checkpoint or restore."""

    source: int
    target: int


@dataclass(slots=True, unsafe_hash=True)
class StoreRecurrent:
    """The step of this plan stores recurrent state in a slot: a checkpoint inside a slice."""

    slot: int


@dataclass(slots=True, unsafe_hash=True)
class SaveBlock:
    """Keep a block's bytes on the host under the chunk's identity."""

    pool: int
    block: int
    identity: int


@dataclass(slots=True, unsafe_hash=True)
class LoadBlock:
    """Bring kept bytes back into a block. A step waits for them once the block is mapped."""

    pool: int
    identity: int
    block: int


@dataclass(slots=True, unsafe_hash=True)
class DigestChunk:
    """Compress the keys of a full chunk into a place for digests. ``first`` is the block of the
    first chunk of its sequence. It reads what the blocks hold before the plan's step."""

    block: int
    first: int
    place: int


@dataclass(slots=True, unsafe_hash=True)
class CopyQueries:
    """Copy the last queries of a slot to another one, or to and from a place for a suspended
    sequence."""

    source: int
    target: int


@dataclass(slots=True, unsafe_hash=True)
class SaveRecurrent:
    """Keep a slot's recurrent state on the host under the checkpoint's identity."""

    slot: int
    identity: int


@dataclass(slots=True, unsafe_hash=True)
class LoadRecurrent:
    """Bring kept recurrent state back into a slot."""

    identity: int
    slot: int


@dataclass(slots=True, unsafe_hash=True)
class DropSaved:
    """Forget the host copy of a chunk without owners, or of a checkpoint that was dropped."""

    identity: int


@dataclass(slots=True, unsafe_hash=True)
class SpillSaved:
    """Write bytes that the host keeps to the disk, as the point of a job of
    :class:`kinfolk.state.disk_books.DiskBooks`: ``blocks`` are (pool, chunk, identity), and
    ``recurrent`` is the identity of recurrent state, 0 = there is none."""

    job: int
    recurrent: int
    blocks: tuple[tuple[int, int, int], ...]


@dataclass(slots=True, unsafe_hash=True)
class FetchSaved:
    """Make room on the host for the bytes of a point, and read them from the disk."""

    job: int
    recurrent: int
    blocks: tuple[tuple[int, int, int], ...]


DiskOperation = SpillSaved | FetchSaved

StateOperation = (
    ClearSlot
    | MapChunk
    | UnmapChunk
    | CopyBlock
    | CopyRecurrent
    | StoreRecurrent
    | SaveBlock
    | LoadBlock
    | DigestChunk
    | CopyQueries
    | SaveRecurrent
    | LoadRecurrent
    | DropSaved
    | SpillSaved
    | FetchSaved
)


class OperationLog:
    """Operations in the order in which they were decided, until a step plan takes them.

    ``saving`` counts, by identity, the saves whose bytes have not come to host memory yet.
    """

    def __init__(self) -> None:
        self.saving: Counter[int] = Counter()
        self._operations: list[StateOperation] = []

    def append(self, operation: StateOperation) -> None:
        self._operations.append(operation)
        if isinstance(operation, SaveBlock | SaveRecurrent):
            self.saving[operation.identity] += 1

    def arrived(self, identities: Iterable[int]) -> None:
        """The bytes of saves have come to host memory."""
        for identity in identities:
            self.saving[identity] -= 1
            if self.saving[identity] <= 0:
                del self.saving[identity]

    def forget(self) -> None:
        """Nothing that was decided is carried out."""
        self.take()
        self.saving.clear()

    def take(self) -> tuple[StateOperation, ...]:
        """All operations since the last call."""
        taken = tuple(self._operations)
        self._operations.clear()
        return taken

    def __repr__(self) -> str:
        return f"OperationLog({self._operations})"
