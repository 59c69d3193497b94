"""Records of the state of sequences: chunks, table entries, leases and checkpoints. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

NO_DIGEST: Final = -1


@dataclass(frozen=True, slots=True)
class SlotLease:
    """The right to use a slot; void once the slot's epoch has moved on."""

    slot: int
    epoch: int


@dataclass(slots=True)
class Chunk:
    """64 positions of a sequence. ``block`` is 0 while the chunk is not on the device.

    ``refs`` counts the tables and checkpoints that see it on the device, ``kept`` the checkpoints
    of them, ``owners`` ``refs``, the tables it was evicted from and the checkpoints that were
    demoted; ``movable`` counts those of ``refs`` that a table may give up while its sequence runs,
    ``pagers`` those of ``owners`` that are tables of paged sequences; ``saved``: the host has its
    bytes, which do not change any more; ``charged``: the books count a row of host memory for it,
    because its bytes are there or may have to go there. ``digest``: the place of its compressed
    keys on the device, ``NO_DIGEST`` = there are none.
    """

    identity: int
    block: int
    refs: int = 0
    owners: int = 0
    kept: int = 0
    movable: int = 0
    pagers: int = 0
    saved: bool = False
    exact: bool = True
    charged: bool = False
    digest: int = NO_DIGEST


@dataclass(slots=True)
class Entry:
    """A chunk in the table of a sequence; ``resident`` is false after the table evicted it, and
    ``fetched`` is true from when it has a block again until it is in the table again."""

    chunk: Chunk
    resident: bool = True
    fetched: bool = False


@dataclass(slots=True)
class SequenceState:
    """The sequence of a slot: committed ``length``, and per pool a table chunk number -> entry.

    Tables are in increasing chunk order; ``evicted`` counts their entries that are not resident,
    ``fetched`` those of them that have a block. With ``resident`` the sequence is paged: at most
    that many of its chunks of full attention are on the device, and ``unsaved`` of its chunks have
    no row of host memory yet, which was promised too. ``digests``: the place of the compressed keys
    of each chunk that it may have, which it keeps once it has one. It had ``started`` positions
    when it got the slot: the rows of others have run in this slot.
    """

    lease: SlotLease
    promised: tuple[int, ...]
    tables: tuple[dict[int, Entry], ...]
    digests: npt.NDArray[np.int32]
    resident: int | None = None
    unsaved: int = 0
    started: int = 0
    length: int = 0
    extended: int = 0
    evicted: int = 0
    fetched: int = 0
    exact: bool = True

    @property
    def paged(self) -> bool:
        return self.resident is not None


@dataclass(eq=False, slots=True)
class Checkpoint:
    """A sequence's state after ``length`` positions; ``slot`` keeps the recurrent part.

    ``resident``: it refers to its chunks on the device, and to ``slot``. A demoted one owns its
    chunks wherever they are, and its recurrent part is kept on the host under ``identity``
    (``saved``). That of a paged sequence which missed something is one from the start; until a
    step has stored its recurrent part, that is in ``slot`` too. ``exact``: no row of it missed a
    chunk that it should have seen. ``pins`` counts the :class:`Pin` objects of it. That of a
    suspended sequence may have the last queries of the rows from ``started`` on in the place
    ``queries``, 0 = it has none.
    """

    length: int
    slot: int
    chunks: tuple[dict[int, Chunk], ...]
    live: bool = True
    identity: int = 0
    resident: bool = True
    saved: bool = False
    exact: bool = True
    pins: int = 0
    queries: int = 0
    started: int = 0


@dataclass(eq=False, slots=True)
class Pin:
    """Holds the recurrent state of a checkpoint and some of its chunks in host memory, by pool and
    number, while the CPU reads or writes them there, even if the checkpoint is dropped."""

    checkpoint: Checkpoint
    chunks: dict[tuple[int, int], Chunk]
