"""Sequences that a second model reads along, to score their chunks (``--kvflash-policy drafter``).

It reads what is new since it was last asked, in slices, one a step, and keeps its keys and values.
Prompts are read ahead while nobody waits for scores. Where slices end depends on the sequence
alone: at multiples of their length, and where scores were asked for.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from kinfolk.compress.back_off import BackOff
from kinfolk.errors import RequestError
from kinfolk.residency.read_tokens import ReadTokens, StartReading
from kinfolk.sched.limits import ScoringLimits
from kinfolk.sched.plan import (
    CHUNK_SCORER_MODEL,
    ChunkScores,
    Item,
    ItemKind,
    ReadingResult,
    ReadingSlice,
)
from kinfolk.sched.request import Request, Sequence
from kinfolk.state.chunks import SlotLease
from kinfolk.state.kv_cache_manager import KVCacheManager

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _ReadSequence:
    """How far a sequence has been read. ``asked``: chunks whose scores somebody waits for.
    ``problem``: why it cannot be read."""

    sequence: Sequence
    text: ReadTokens
    lease: SlotLease | None = None
    done: int = 0
    asked: int | None = None
    problem: str | None = None


@dataclass(slots=True)
class ChunkReading:
    """Plans the items of ``CHUNK_SCORER_MODEL``. Not thread-safe but for :meth:`read`: the engine's
    thread owns it.

    ``kv_cache`` has the state of that model, with a slot for each sequence that may have one.
    Nothing that goes wrong here fails a request: chunks are chosen by recency then, ``failures``
    counts it, and the first time is logged. An error of the model ends what it has read of all
    sequences, and the next try waits (:class:`BackOff`).
    """

    limits: ScoringLimits
    kv_cache: KVCacheManager
    start: StartReading
    back_off: BackOff = field(default_factory=BackOff)
    tokens: int = 0
    failures: int = 0
    _readers: dict[str, _ReadSequence] = field(default_factory=dict)
    _outstanding: ReadingSlice | None = None

    @property
    def busy(self) -> bool:
        """Whether there is something to read."""
        return self._next() is not None

    def read(self, request: Request) -> ReadTokens | None:
        """The tokens of a prompt as they are read, which takes a while if it is long; ``None`` if
        they cannot be read. Any thread may ask."""
        text = self.start()
        try:
            text.extend(request.prompt)
        except (ValueError, RequestError):
            return None
        return text

    def started(self, sequence: Sequence) -> None:
        """A paged sequence has got a slot."""
        sequence.read = sequence.read or self.start()
        reader = self._readers[sequence.request.id] = _ReadSequence(sequence, sequence.read)
        self._feed(reader)

    def ended(self, sequence: Sequence) -> None:
        """A sequence has lost its slot, for good or for a while."""
        reader = self._readers.pop(sequence.request.id, None)
        if reader is not None:
            self._release(reader)
            if reader.problem is not None:
                sequence.read = None  # it may lack a part of the text

    def ask(self, sequence: Sequence, chunks: int) -> ChunkScores | None:
        """Score the first ``chunks`` chunks by all tokens that are known now. ``None``: the answer
        comes from :meth:`commit`."""
        reader = self._readers[sequence.request.id]
        self._feed(reader)
        if reader.problem is not None or self.back_off.waiting:
            self._note(reader.problem or "it is tried again later")
            return ChunkScores(sequence.leased)
        if reader.done == len(reader.text.ids):
            return ChunkScores(sequence.leased, keep=True)  # there is nothing new
        reader.asked = chunks
        return None

    def plan(self) -> ReadingSlice | None:
        """The next slice, or ``None`` if there is nothing to read."""
        reader = None if self._outstanding is not None else self._next()
        if reader is None:
            return None
        name, tables = reader.sequence.request.id, self.kv_cache.tables
        if reader.lease is None:
            reader.lease = self.kv_cache.open(self.limits.context)
        # Behind the others: each that waits has a slice in turn.
        self._readers[name] = self._readers.pop(name)
        stop = self._stop(reader)
        assert stop is not None
        tables.extend(reader.lease, stop)
        ids = reader.text.ids
        item = Item(
            lease=reader.lease,
            request_id=name,
            kind=ItemKind.PREFILL,
            tokens=tuple(ids[reader.done : stop]),
            start=reader.done,
            sample=False,
            model=CHUNK_SCORER_MODEL,
        )
        self._outstanding = ReadingSlice(item, self.kv_cache.take_operations(), len(ids))
        return self._outstanding

    def commit(self, result: ReadingResult) -> list[ChunkScores]:
        """Apply what became of the outstanding slice. Returns the answers of those who waited."""
        planned, self._outstanding = self._outstanding, None
        if planned is None:
            return []
        if result.error is not None:
            self.back_off.failed()
            self._note(result.error)
            return self.forget()
        reader = self._readers.get(planned.item.request_id)
        if reader is None or reader.lease is not planned.item.lease:
            return []  # it has ended meanwhile
        reader.done += planned.item.rows
        self.tokens += planned.item.rows
        self.kv_cache.tables.advance(planned.item.lease, reader.done)
        if result.scores is None or reader.asked is None:
            return []
        self.back_off.succeeded()
        chunks, reader.asked = reader.asked, None
        values = reader.text.chunk_scores(result.scores, chunks)
        return [ChunkScores(reader.sequence.leased, values)]

    def forget(self) -> list[ChunkScores]:
        """What was read is lost. Returns answers without scores to all who wait."""
        self._outstanding = None
        answers = []
        for reader in self._readers.values():
            self._release(reader)
            if reader.asked is not None:
                reader.asked = None
                answers.append(ChunkScores(reader.sequence.leased))
        self.kv_cache.forget_operations()
        return answers

    def stats(self) -> dict[str, int]:
        return {"kvflash_read_tokens": self.tokens, "kvflash_reading_failures": self.failures}

    # -- inside ---------------------------------------------------------------------------------

    def _next(self) -> _ReadSequence | None:
        """Whose turn it is: of those who are waited for, else of prompts that can be read ahead."""
        if self.back_off.waiting:
            return None
        readers = self._readers.values()
        asked = (reader for reader in readers if reader.asked is not None)
        ahead = (reader for reader in readers if self._stop(reader) is not None)
        return next(asked, None) or next(ahead, None)

    def _stop(self, reader: _ReadSequence) -> int | None:
        """Where the next slice ends; ``None`` = it has to wait for more tokens. The slice that
        scores has ``least`` rows, so as many stay unread until then."""
        length, size = len(reader.text.ids), self.limits.slice
        grid = (reader.done // size + 1) * size
        if grid + self.limits.least <= length and reader.problem is None:
            return grid
        if reader.asked is None:
            return None
        behind = length - self.limits.least
        return behind if grid < length and reader.done < behind else length

    def _feed(self, reader: _ReadSequence) -> None:
        """Let a reader have the tokens that are new."""
        if reader.problem is not None:
            return
        try:
            reader.text.extend(reader.sequence.known[reader.text.count :])
        except (ValueError, RequestError) as error:
            reader.problem = str(error)
        if len(reader.text.ids) > self.limits.context:
            reader.problem = (
                f"a text of {len(reader.text.ids)} tokens is to be read, and the model of "
                f"--kvflash-drafter reads at most {self.limits.context}"
            )

    def _release(self, reader: _ReadSequence) -> None:
        if reader.lease is not None:
            self.kv_cache.tables.release(reader.lease)
        reader.lease, reader.done = None, 0

    def _note(self, problem: str) -> None:
        if not self.failures:
            log.warning(
                "--kvflash-policy drafter: chunks are chosen by recency this time, and whenever "
                "this happens again: %s",
                problem,
            )
        self.failures += 1
