"""Chunks of sequences and who refers to them: the records that a ledger keeps.

A chunk is 64 logical positions, a block its place in a pool. See :mod:`kinfolk.state.ledger`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kinfolk.types import DUMMY


@dataclass(frozen=True, slots=True)
class SlotLease:
    """The right to use a slot; void once the slot's epoch has moved on."""

    slot: int
    epoch: int


@dataclass(slots=True)
class Chunk:
    """Identity of 64 positions. ``block`` 0 = not resident; ``refs`` tables and checkpoints that
    see it on the device, ``owners`` those plus the tables it was evicted from."""

    identity: int
    block: int
    refs: int = 0
    owners: int = 0
    saved: bool = False
    exact: bool = True


@dataclass(slots=True)
class Entry:
    chunk: Chunk
    resident: bool = True


@dataclass(slots=True)
class Sequence:
    """What a slot holds: committed ``length``, and per pool a table chunk number -> entry.

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


@dataclass(slots=True)
class BlockPool:
    """Free blocks of one pool, lowest first out of fairness to readers of dumps."""

    size: int
    window: int | None
    free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = list(range(self.size, DUMMY, -1))
