"""What the scheduler tells the outside about a request."""

from __future__ import annotations

from dataclasses import dataclass

from kinfolk.sched.draft_counts import NO_DRAFTS, DraftCounts
from kinfolk.sched.plan import TokenLogprob
from kinfolk.sched.request import FinishReason, Place, Sequence


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of one request.

    ``reused`` prompt tokens came from a checkpoint at ``reused_from``; ``steps`` are decode and
    verify steps, so that ``(emitted - 1) / steps`` is the mean number of tokens a step. ``drafts``
    counts those that verified something. ``exact``: no row missed a chunk that had left the device.
    """

    prompt: int
    reused: int = 0
    emitted: int = 0
    steps: int = 0
    drafts: DraftCounts = NO_DRAFTS
    reused_from: Place | None = None
    exact: bool = True

    @property
    def drafted(self) -> int:
        return self.drafts.drafted

    @property
    def accepted(self) -> int:
        return self.drafts.accepted

    @classmethod
    def of(cls, sequence: Sequence, drafts: DraftCounts) -> Usage:
        return cls(
            prompt=len(sequence.request.prompt),
            reused=sequence.reused,
            emitted=sequence.emitted,
            steps=sequence.steps,
            drafts=drafts,
            reused_from=sequence.reused_from,
            exact=sequence.exact,
        )


@dataclass(frozen=True, slots=True)
class Emitted:
    """Tokens chosen in a step, in order; a stop token is the last one of its request."""

    request_id: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The one terminal event of a request; ``error`` is set when ``reason`` is ``ERROR``."""

    request_id: str
    reason: FinishReason
    usage: Usage
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """The request has emitted what it was granted and keeps its slot."""

    request_id: str
    slot: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """The request has no slot, and gets none before a held one is granted more or ends: nothing
    else runs."""

    request_id: str


Event = Emitted | Finished
"""What every client of a request hears."""

Pause = Held | Blocked
"""Heard of only where requests have grants."""

SchedulerEvent = Event | Pause
