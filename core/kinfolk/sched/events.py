"""What the scheduler tells the outside about a request."""

from __future__ import annotations

from dataclasses import dataclass

from kinfolk.sched.plan import TokenLogprob
from kinfolk.sched.request import FinishReason, Sequence


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts of one request.

    ``reused`` prompt tokens came from a checkpoint; ``steps`` are decode and verify steps, so that
    ``(emitted - 1) / steps`` is the mean number of tokens a step.
    """

    prompt: int
    reused: int
    emitted: int
    drafted: int
    accepted: int
    steps: int

    @classmethod
    def of(cls, sequence: Sequence) -> Usage:
        return cls(
            prompt=len(sequence.request.prompt),
            reused=sequence.reused,
            emitted=sequence.emitted,
            drafted=sequence.drafted,
            accepted=sequence.accepted,
            steps=sequence.steps,
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


Event = Emitted | Finished
