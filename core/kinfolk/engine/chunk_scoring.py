"""Asks the hook ``score_chunks`` behind a step, and reads the scores with the step's outputs."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np
import torch

from kinfolk.engine.failures import explain
from kinfolk.hooks import ModelHookCaller
from kinfolk.sched.plan import ChunkScores, ScoreRequest
from kinfolk.score_api import ChunkQuery, Keep, Scores
from kinfolk.types import CHUNK_POSITIONS

log = logging.getLogger(__name__)

PROBE_CHUNKS = 2


@dataclass(frozen=True, slots=True)
class PendingScores:
    """Scores of a sequence that are on their way to the host; ``values`` are valid once the outputs
    of the step are."""

    request: ScoreRequest
    values: torch.Tensor | None = None
    keep: bool = False


class ChunkScoring:
    """Scores chunks for one model. Nothing that a scorer does can fail a request: ``failures``
    counts the rounds that it cost, and the first one is logged. ``nanoseconds`` is the host's
    time."""

    def __init__(self, hooks: ModelHookCaller) -> None:
        self._hooks = hooks
        self.failures = 0
        self.nanoseconds = 0

    def launch(self, requests: Sequence[ScoreRequest]) -> list[PendingScores]:
        """Ask for scores behind what is launched; the host does not wait for the device."""
        if not requests:
            return []
        started = perf_counter_ns()
        pending = [self._launch(request) for request in requests]
        self.nanoseconds += perf_counter_ns() - started
        return pending

    def collect(self, pending: Sequence[PendingScores]) -> tuple[ChunkScores, ...]:
        """The scores, after the wait for the outputs of their step."""
        return tuple(map(self._collected, pending))

    def _launch(self, request: ScoreRequest) -> PendingScores:
        query = ChunkQuery(
            tokens=request.tokens,
            length=request.length,
            chunks=len(request.resident),
            resident=np.array(request.resident, np.bool_),
            last_used=np.array(request.last_used, np.int64),
            reason=request.reason,
        )
        try:
            answer = self._hooks.score_chunks(query)
            if isinstance(answer, Scores):
                return PendingScores(request, _on_its_way(answer.values))
            return PendingScores(request, keep=isinstance(answer, Keep))
        except (Exception, SystemExit) as error:
            self._note(explain(error))
            return PendingScores(request)

    def _collected(self, pending: PendingScores) -> ChunkScores:
        lease, values = pending.request.lease, pending.values
        if values is None:
            return ChunkScores(lease, keep=pending.keep)
        numbers = tuple(values.tolist())
        if not all(map(math.isfinite, numbers)):
            self._note("hook score_chunks: a score is not a finite number")
            return ChunkScores(lease)
        return ChunkScores(lease, numbers)

    def _note(self, problem: str) -> None:
        if not self.failures:
            log.warning(
                "chunks are chosen by recency this time, and whenever this happens again: %s",
                problem,
            )
        self.failures += 1


def probe_scorers(hooks: ModelHookCaller) -> None:
    """Ask once for a try, when a model is opened. Raises the error of a wrong answer."""
    length = PROBE_CHUNKS * CHUNK_POSITIONS
    hooks.score_chunks(
        ChunkQuery(
            tokens=[0] * length,
            length=length,
            chunks=PROBE_CHUNKS,
            resident=np.ones(PROBE_CHUNKS, np.bool_),
            last_used=np.full(PROBE_CHUNKS, length, np.int64),
            reason="interval",
        )
    )


def _on_its_way(values: torch.Tensor) -> torch.Tensor:
    """Where the values are once the step's outputs have arrived, on the host."""
    if values.device.type != "cuda":
        return values
    pinned = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return pinned.copy_(values, non_blocking=True)
