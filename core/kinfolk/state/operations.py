"""Changes of state as integers: what a step plan carries and ``State.apply`` executes.

Slots and blocks are indices into device tensors. Recurrent state and its checkpoints share one
slot space, so saving and restoring a checkpoint on the device is one copy between slots. Bytes in
host memory go by the identity of a chunk, or that of a checkpoint for its recurrent state.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClearSlot:
    """Start a sequence: empty tables, zero recurrent state."""

    slot: int


@dataclass(frozen=True, slots=True)
class MapChunk:
    """Enter ``block`` as the place of logical ``chunk`` in the slot's table."""

    pool: int
    slot: int
    chunk: int
    block: int


@dataclass(frozen=True, slots=True)
class UnmapChunk:
    """Take a chunk out of the slot's table: evicted, or passed by the window."""

    pool: int
    slot: int
    chunk: int


@dataclass(frozen=True, slots=True)
class CopyBlock:
    """Copy a block's bytes, when a fork needs a partial chunk of its own."""

    pool: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class CopyRecurrent:
    """Copy all recurrent tensors of a slot: fork, checkpoint or restore."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class StoreRecurrent:
    """The step of this plan stores recurrent state in a slot: a checkpoint inside a slice."""

    slot: int


@dataclass(frozen=True, slots=True)
class SaveBlock:
    """Keep a block's bytes on the host under the chunk's identity."""

    pool: int
    block: int
    identity: int


@dataclass(frozen=True, slots=True)
class LoadBlock:
    """Bring kept bytes back into a block."""

    pool: int
    identity: int
    block: int


@dataclass(frozen=True, slots=True)
class SaveRecurrent:
    """Keep a slot's recurrent state on the host under the checkpoint's identity."""

    slot: int
    identity: int


@dataclass(frozen=True, slots=True)
class LoadRecurrent:
    """Bring kept recurrent state back into a slot."""

    identity: int
    slot: int


@dataclass(frozen=True, slots=True)
class DropSaved:
    """Forget the host copy of a chunk without owners, or of a checkpoint that was dropped."""

    identity: int


StateOperation = (
    ClearSlot
    | MapChunk
    | UnmapChunk
    | CopyBlock
    | CopyRecurrent
    | StoreRecurrent
    | SaveBlock
    | LoadBlock
    | SaveRecurrent
    | LoadRecurrent
    | DropSaved
)


class OperationLog:
    """Operations in the order in which they were decided, until a step plan takes them."""

    def __init__(self) -> None:
        self._operations: list[StateOperation] = []

    def append(self, operation: StateOperation) -> None:
        self._operations.append(operation)

    def take(self) -> tuple[StateOperation, ...]:
        """All operations since the last call."""
        taken = tuple(self._operations)
        self._operations.clear()
        return taken

    def __repr__(self) -> str:
        return f"OperationLog({self._operations})"
