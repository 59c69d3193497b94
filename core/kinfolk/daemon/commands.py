"""What a line of the daemon asks for, as frozen values. ``grammar.parse`` makes them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from kinfolk.sched.request import Sampling
from kinfolk.types import Parkable

GREEDY: Final = Sampling()


@dataclass(frozen=True, slots=True)
class StartCommand:
    """Prefill the token ids of a file and run a first turn; ``total`` tokens in turns of
    ``quantum``."""

    path: str
    total: int
    quantum: int
    sampling: Sampling = GREEDY


@dataclass(frozen=True, slots=True)
class ContinueCommand:
    """Run a turn of at most ``tokens`` tokens."""

    tokens: int


@dataclass(frozen=True, slots=True)
class StepCommand:
    """Run a turn of the next request in rotation."""


@dataclass(frozen=True, slots=True)
class DrainCommand:
    """Run turns until every request has ended: one after the other, or if ``batched`` those of
    ``most`` requests together (``None`` = of all)."""

    batched: bool = False
    most: int | None = None


class Batch(Enum):
    PEEK = "SCHED_BATCH_PEEK"
    PROBE = "SCHED_BATCH_PROBE"
    TAIL = "SCHED_BATCH_TARGET_TAIL"
    STEP = "SCHED_BATCH_TARGET_STEP"


@dataclass(frozen=True, slots=True)
class BatchCommand:
    """Something about the next batch of aligned requests, of ``most`` at most."""

    kind: Batch
    most: int | None = None


class Listing(Enum):
    REQUESTS = "LIST_REQUESTS"
    CACHE_SLOTS = "LIST_TARGET_CACHE_SLOTS"
    SNAPSHOTS = "LIST_SLOTS"


@dataclass(frozen=True, slots=True)
class ListCommand:
    what: Listing


@dataclass(frozen=True, slots=True)
class CancelCommand:
    """End a request; ``None`` = that of the header."""

    request: int | None


@dataclass(frozen=True, slots=True)
class SnapshotCommand:
    """Keep the state of a request as snapshot ``number``; a ``thin`` one is the range of positions
    ``first..end - 1``, which goes on from other snapshots."""

    number: int
    thin: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class FreeSnapshotCommand:
    number: int


@dataclass(frozen=True, slots=True)
class Restore:
    """The snapshots that a prompt goes on from: one that is not thin, ``None`` = none, and thin
    ones."""

    full: int | None
    thin: tuple[int, ...] = ()

    @property
    def numbers(self) -> tuple[int, ...]:
        return (() if self.full is None else (self.full,)) + self.thin


@dataclass(frozen=True, slots=True)
class GenerateCommand:
    """Prefill the token ids of a file, from snapshots if ``restore`` names some, and run to the
    end. ``keep`` = (position, number) of a snapshot to take in the prompt; ``out`` is a file for
    the tokens, and both files then begin with their number of tokens."""

    path: str
    total: int
    restore: Restore | None = None
    keep: tuple[int, int] | None = None
    out: str | None = None
    sampling: Sampling = GREEDY


@dataclass(frozen=True, slots=True)
class ParkCommand:
    """Free the memory of ``what`` on the device, once all requests have ended if it is to
    ``drain``; or, ``back``, load it again."""

    what: Parkable
    back: bool
    drain: bool = False


@dataclass(frozen=True, slots=True)
class FreeDrafterCommand:
    """Free the drafter."""


@dataclass(frozen=True, slots=True)
class CompressCommand:
    """Keep the ``per_mille`` most important tokens of a thousand of a file, by a scorer."""

    path: str
    per_mille: int
    scorer: str
    park: bool = True


@dataclass(frozen=True, slots=True)
class QuitCommand:
    """End the connection."""


Command = (
    StartCommand
    | ContinueCommand
    | StepCommand
    | DrainCommand
    | BatchCommand
    | ListCommand
    | CancelCommand
    | SnapshotCommand
    | FreeSnapshotCommand
    | GenerateCommand
    | ParkCommand
    | FreeDrafterCommand
    | CompressCommand
    | QuitCommand
)


@dataclass(frozen=True, slots=True)
class Line:
    """A command with its headers; ``request`` 0 = no header, ``slot`` counts from 0."""

    command: Command
    request: int = 0
    slot: int | None = None
