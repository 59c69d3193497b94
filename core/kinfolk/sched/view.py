"""A request as it is now, for lists and metrics. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from kinfolk.sched.request import Sequence, Status


@dataclass(frozen=True, slots=True)
class SequenceView:
    """``position`` positions are in the state, and ``pending`` is the token that comes next, if one
    is chosen. ``slot`` and ``epoch`` are those of its lease, ``None`` while it waits. ``left`` =
    tokens that it may emit before it ends or is held. ``reused`` positions came from a stored
    prefix; ``accept_length`` = tokens that its drafting steps emit on average, 0 without such
    steps."""

    request_id: str
    status: Status
    slot: int | None
    epoch: int | None
    prompt: int
    position: int
    pending: int | None
    emitted: int
    remaining: int
    left: int
    quantum: int | None
    priority: int
    reused: int
    accept_length: float

    @classmethod
    def of(cls, sequence: Sequence) -> Self:
        lease = sequence.lease
        chosen = sequence.status in (Status.DECODE, Status.HELD)
        return cls(
            request_id=sequence.request.id,
            status=sequence.status,
            slot=None if lease is None else lease.slot,
            epoch=None if lease is None else lease.epoch,
            prompt=len(sequence.request.prompt),
            position=sequence.computed,
            pending=sequence.known[sequence.computed] if chosen else None,
            emitted=sequence.emitted,
            remaining=sequence.remaining,
            left=sequence.budget,
            quantum=sequence.request.quantum,
            priority=sequence.request.priority,
            reused=sequence.reused,
            accept_length=sequence.drafts.accept_length,
        )
