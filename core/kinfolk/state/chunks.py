"""Records of the state of sequences: chunks, table entries, leases and checkpoints. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SlotLease:
    """The right to use a slot; void once the slot's epoch has moved on."""

    slot: int
    epoch: int


@dataclass(slots=True)
class Chunk:
    """64 positions of a sequence. ``block`` is 0 while the chunk is not on the device.

    ``refs`` counts the tables and checkpoints that see it on the device, ``kept`` the checkpoints
    of them, ``owners`` ``refs`` and the tables it was evicted from; ``saved``: the host has its
    bytes.
    """

    identity: int
    block: int
    refs: int = 0
    owners: int = 0
    kept: int = 0
    saved: bool = False
    exact: bool = True


@dataclass(slots=True)
class Entry:
    """A chunk in the table of a sequence; ``resident`` is false after the table evicted it."""

    chunk: Chunk
    resident: bool = True


@dataclass(slots=True)
class SequenceState:
    """The sequence of a slot: committed ``length``, and per pool a table chunk number -> entry.

    Tables are in increasing chunk order; ``evicted`` counts their entries that are not resident.
    """

    lease: SlotLease
    promised: tuple[int, ...]
    tables: tuple[dict[int, Entry], ...]
    length: int = 0
    extended: int = 0
    evicted: int = 0
    exact: bool = True


@dataclass(eq=False, slots=True)
class Checkpoint:
    """A sequence's state after ``length`` positions; ``slot`` keeps the recurrent part."""

    length: int
    slot: int
    chunks: tuple[dict[int, Chunk], ...]
    live: bool = True
