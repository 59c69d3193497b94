"""Scores chunks behind a step, and reads the scores with the step's outputs.

Policies are asked first (hook ``score_chunks``), and if none answers, the scorer of the core.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt
import torch

from kinfolk.engine.failures import explain
from kinfolk.engine.qk_scorer import QkScorer
from kinfolk.hooks import ModelHookCaller
from kinfolk.sched.plan import ChunkScores, ScoreRequest
from kinfolk.score_api import ChunkKeys, ChunkQuery, Keep, Scores
from kinfolk.state.transfer import Transfer
from kinfolk.types import CHUNK_POSITIONS
from kinfolk_kernels.write_queries.op import RING_ROWS

log = logging.getLogger(__name__)

PROBE_CHUNKS = 2


@dataclass(frozen=True, slots=True)
class PendingScores:
    """Scores of a sequence that are on their way to the host; ``values`` are valid once the outputs
    of the step are, until the next step is scored. ``read``: another model is to read the sequence
    first."""

    request: ScoreRequest
    values: npt.NDArray[np.float32] | None = None
    keep: bool = False
    read: bool = False


class ChunkScoring:
    """Scores chunks for one model, of at most ``slots`` sequences of ``chunks`` chunks in a step,
    and of one step at a time. Nothing that a scorer does can fail a request: ``failures`` counts
    the rounds that it cost, and the first one is logged. ``nanoseconds`` is the host's time.
    ``reads``: what no policy scores, another model does."""

    def __init__(
        self,
        hooks: ModelHookCaller,
        scorer: QkScorer | None,
        slots: int,
        chunks: int,
        device: torch.device,
        *,
        reads: bool = False,
    ) -> None:
        self._hooks, self._scorer, self._reads = hooks, scorer, reads
        self._asked = bool(hooks.asked("score_chunks"))
        self.failures = 0
        self.nanoseconds = 0
        self._places = Transfer({"places": ("int32", (chunks,))}, device, slots + 1)
        # Made once: to make pinned memory, the host waits for the device.
        host = torch.empty(slots, chunks, pin_memory=device.type == "cuda")
        self._host = list(host)
        self._values: list[npt.NDArray[np.float32]] = list(host.numpy())

    def launch(self, requests: Sequence[ScoreRequest]) -> list[PendingScores]:
        """Ask for scores behind what is launched; the host does not wait for the device."""
        if not requests:
            return []
        started = perf_counter_ns()
        pending = [self._launch(number, request) for number, request in enumerate(requests)]
        self.nanoseconds += perf_counter_ns() - started
        return pending

    def collect(self, pending: Sequence[PendingScores]) -> tuple[ChunkScores, ...]:
        """The scores, after the wait for the outputs of their step."""
        return tuple(map(self._collected, pending))

    def _launch(self, number: int, request: ScoreRequest) -> PendingScores:
        try:
            queries, keys = self._operands(request)
            answer = (
                self._hooks.score_chunks(_query(request, queries, keys)) if self._asked else None
            )
            if isinstance(answer, Keep):
                return PendingScores(request, keep=True)
            if isinstance(answer, Scores):
                return PendingScores(request, self._on_its_way(number, answer.values))
            if self._scorer is None or queries is None or keys is None:
                return PendingScores(request, read=self._reads)
            values = self._scorer.scores(queries, keys.places)
            return PendingScores(request, self._on_its_way(number, values))
        except (Exception, SystemExit) as error:
            self._note(explain(error))
            return PendingScores(request)

    def _operands(self, request: ScoreRequest) -> tuple[torch.Tensor | None, ChunkKeys | None]:
        """Queries of the sequence, and the compressed keys of its chunks, if there are any."""
        scorer = self._scorer
        if scorer is None:
            return None, None
        self._places.turn()
        self._places.host["places"][: len(request.digests)] = request.digests
        self._places.upload()
        places = self._places.device["places"][: len(request.digests)]
        rows = min(RING_ROWS, request.stop - request.started)
        # Scores are the largest of all rows; only policies are told in which order these came.
        queries = scorer.queries(request.lease.slot, request.stop, rows, in_order=self._asked)
        return queries, ChunkKeys(scorer.keys.codes, scorer.keys.scales, places, scorer.layers)

    def _collected(self, pending: PendingScores) -> ChunkScores:
        lease, values = pending.request.lease, pending.values
        if values is None:
            return ChunkScores(lease, keep=pending.keep, read=pending.read)
        numbers = values.astype(np.float64)
        if not np.isfinite(numbers).all():
            self._note("a score of a chunk is not a finite number")
            return ChunkScores(lease)
        return ChunkScores(lease, numbers)

    def _on_its_way(self, number: int, values: torch.Tensor) -> npt.NDArray[np.float32]:
        """Where the values are once the step's outputs have arrived, on the host."""
        chunks = values.shape[0]
        self._host[number][:chunks].copy_(values, non_blocking=True)
        return self._values[number][:chunks]

    def _note(self, problem: str) -> None:
        if not self.failures:
            log.warning(
                "chunks are chosen by recency this time, and whenever this happens again: %s",
                problem,
            )
        self.failures += 1


def probe_scorers(hooks: ModelHookCaller, scorer: QkScorer | None = None) -> None:
    """Ask policies once for a try, when a model is opened; ``scorer`` is like the core's. Raises
    the error of a wrong answer."""
    length = PROBE_CHUNKS * CHUNK_POSITIONS
    queries, keys = None, None
    if scorer is not None:
        queries = scorer.ring[0]
        places = torch.arange(PROBE_CHUNKS, dtype=torch.int32, device=queries.device)
        keys = ChunkKeys(scorer.keys.codes, scorer.keys.scales, places, scorer.layers)
    hooks.score_chunks(
        ChunkQuery(
            tokens=[0] * length,
            length=length,
            chunks=PROBE_CHUNKS,
            resident=np.ones(PROBE_CHUNKS, np.bool_),
            last_used=np.full(PROBE_CHUNKS, length, np.int64),
            reason="interval",
            queries=queries,
            keys=keys,
        )
    )


def _query(
    request: ScoreRequest, queries: torch.Tensor | None, keys: ChunkKeys | None
) -> ChunkQuery:
    return ChunkQuery(
        tokens=request.tokens,
        length=request.length,
        chunks=len(request.resident),
        resident=np.array(request.resident, np.bool_),
        last_used=np.array(request.last_used, np.int64),
        reason=request.reason,
        queries=queries,
        keys=keys,
    )
