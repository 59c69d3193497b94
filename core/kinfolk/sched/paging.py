"""Paging on behalf of requests: chunks of sequences that are longer than their budget leave the
device and come back.

Everything is a function of the sequence's own steps. Chunks leave when a row needs their place.
A selection takes three steps of its sequence: the first one is scored, the plan of the second one
loads chunks into spare blocks while its step runs, and the plan of the third one exchanges them.
Where another model scores chunks, the sequence waits behind the first one until that has read it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from time import perf_counter_ns

from kinfolk.residency.kept import NOTHING_KEPT, KeptResidency
from kinfolk.residency.residency import Phase, Residency
from kinfolk.residency.rules import ResidencyRules
from kinfolk.sched.chunk_reading import ChunkReading
from kinfolk.sched.plan import ChunkScores, ScoreRequest
from kinfolk.sched.request import Sequence
from kinfolk.state.chain_hash import paged_root
from kinfolk.state.geometry import chunks_for
from kinfolk.state.hashed_tokens import HashedTokens
from kinfolk.state.sequence_tables import SequenceTables
from kinfolk.types import CHUNK_POSITIONS

LAST_TOKENS = CHUNK_POSITIONS - 1
"""Most tokens of a prompt that are read after its last selection."""


class Paging:
    """Decides what leaves and comes back; without ``rules``, nothing does.

    ``exchanges`` and ``selections`` count chunks that came back and scores that came, ``evictions``
    chunks that left. ``choosing``, with what is asked for it, and ``moving`` are the host's
    nanoseconds; they decide nothing.
    ``reading``: what another model reads, to score chunks that nobody else has scored.
    """

    def __init__(
        self,
        rules: ResidencyRules | None,
        tables: SequenceTables,
        reading: ChunkReading | None = None,
    ) -> None:
        self.rules = rules
        self._reading = reading
        self.evictions = 0
        self.exchanges = 0
        self.selections = 0
        self.choosing = 0
        self.moving = 0
        self._tables = tables
        self._requests: list[ScoreRequest] = []
        self._asked: dict[int, Sequence] = {}

    def stats(self, sequences: Iterable[Sequence]) -> dict[str, int]:
        """Counters since the start, the rules (0 = there are none), and what ``sequences`` have:
        the number of paged ones with a slot, and of their chunks on the device and away."""
        paged = [each.residency for each in sequences if each.lease and each.residency]
        rules = self.rules
        return {
            "kvflash_tokens": 0 if rules is None else rules.chunks * CHUNK_POSITIONS,
            "kvflash_tau": 0 if rules is None else rules.tau,
            "kvflash_scorers": 0 if rules is None else len(rules.scorers),
            "kvflash_sequences": len(paged),
            "kvflash_resident_chunks": sum(each.known - each.missing for each in paged),
            "kvflash_away_chunks": sum(each.missing for each in paged),
            "kvflash_evictions": self.evictions,
            "kvflash_recalls": self.exchanges,
            "kvflash_selections": self.selections,
            "kvflash_choosing_us": self.choosing // 1000,
            "kvflash_moving_us": self.moving // 1000,
        }

    def resident(self, positions: int) -> int | None:
        """The budget of a sequence of so many positions, ``None`` if it needs none."""
        if self.rules is None or chunks_for(positions) <= self.rules.chunks:
            return None
        return self.rules.chunks

    def salt(self, tokens: HashedTokens) -> HashedTokens:
        """The same tokens for prefixes of sequences that missed something: they are found by those
        with the same rules only."""
        paging = "" if self.rules is None else self.rules.salt
        return tokens.with_root(paged_root(tokens.chain[0], paging))

    def away(self, length: int, prompt: int, kept: KeptResidency | None = None) -> frozenset[int]:
        """Full chunks that a paged sequence starts without, if its first ``length`` positions are
        there and its prompt has ``prompt`` tokens: all that its first slice leaves no room for.
        ``kept`` decides which ones; by default, the last ones stay."""
        if self.rules is None:
            return frozenset()
        rows, there = min(self.rules.slice_rows(prompt), prompt - length), chunks_for(length)
        places = self.rules.decoding - max(1, chunks_for(length + rows) - there)
        first = self.rules.sink
        movable = range(first, max(first, there - self.rules.tail))
        stay = places - first - self.rules.tail
        return frozenset(movable) - (kept or NOTHING_KEPT).best(movable, max(0, stay))

    def started(self, sequence: Sequence, kept: KeptResidency | None = None) -> None:
        """A sequence has got a slot; ``kept`` is of what it started from."""
        seq = self._tables.sequence(sequence.leased)
        if self.rules is None or not seq.paged:
            return
        if self._reading is not None:
            self._reading.started(sequence)
        if sequence.residency is not None:
            sequence.residency.reopened(chunks_for(seq.extended))
            if self.waits(sequence):
                self._await(sequence)
            return
        away = sorted(self._tables.away(sequence.leased))
        known = chunks_for(seq.extended)
        judged = None if kept is None else kept.scores
        # A partly filled chunk may be filled with other tokens than those that were scored.
        scores = None if judged is None else judged[: seq.length // CHUNK_POSITIONS]
        sequence.residency = Residency(self.rules, seq.length, known, away, scores)

    def ended(self, sequence: Sequence) -> None:
        """A sequence gives its slot back, for good or for a while."""
        if self._reading is not None:
            self._reading.ended(sequence)

    # -- planning -------------------------------------------------------------------------------

    def waits(self, sequence: Sequence) -> bool:
        """Whether a sequence waits for scores, while no step is under way."""
        residency = sequence.residency
        return residency is not None and residency.phase is Phase.ASKED

    def slice_end(self, sequence: Sequence, end: int, most: int) -> int:
        """Where the next slice of a prompt ends, which would be at ``end`` without paging, on the
        grid of ``most``."""
        residency = sequence.residency
        if residency is None:
            return end
        rows, start = residency.rules.slice_rows(most), sequence.computed
        end = min(end, (start // rows + 1) * rows)
        last = last_tokens_from(len(sequence.request.prompt))
        if residency.rules.scored and start < last < end:
            return last
        return end

    def before_slice(self, sequence: Sequence, stop: int) -> None:
        """A slice up to ``stop`` is planned."""
        residency = sequence.residency
        if residency is None:
            return
        prompt = len(sequence.request.prompt)
        last = stop == prompt
        self._move(sequence, residency, at_once=last)
        self._make_room(sequence, residency, chunks_for(stop), residency.rules.reading)
        residency.grow(chunks_for(stop))
        ends = stop == last_tokens_from(prompt) and not residency.rules.previews
        self._ask(sequence, residency, stop, prompt_ends=ends)

    def previews(self, sequence: Sequence, stop: int) -> bool:
        """Whether the rows up to ``stop`` run once before they are read, for their queries: the
        last ones of a prompt, while chunks are away."""
        residency, prompt = sequence.residency, len(sequence.request.prompt)
        return (
            residency is not None
            and residency.rules.previews
            and not residency.previewed
            and residency.missing > 0
            and stop == prompt
            and sequence.computed >= last_tokens_from(prompt)
        )

    def before_preview(self, sequence: Sequence, stop: int) -> None:
        """Such rows are planned."""
        residency = sequence.residency
        if residency is None:
            return
        residency.previewed = True
        self._move(sequence, residency, at_once=True)
        self._make_room(sequence, residency, chunks_for(stop), residency.rules.reading)
        residency.grow(chunks_for(stop))
        self._ask(sequence, residency, stop, prompt_ends=True)

    def before_decode(self, sequence: Sequence, start: int, stop: int) -> None:
        """A row at ``start`` is planned, and drafts behind it up to ``stop``."""
        residency = sequence.residency
        if residency is None:
            return
        self._move(sequence, residency, at_once=False)
        needed = chunks_for(start + 1)
        # The row's own chunk is one of the last: else what was chosen would leave for it.
        self._make_room(sequence, residency, needed, residency.rules.decoding, last_of=needed)
        residency.grow(chunks_for(stop))
        self._ask(sequence, residency, start + 1)

    def overlaps(self, sequences: Iterable[Sequence]) -> bool:
        """Whether no sequence's next step is scored or exchanges chunks, if the one under way emits
        a token of each."""
        paged = (each.residency for each in sequences if each.residency is not None)
        return all(each.settled and each.due(1) is None for each in paged)

    def take_requests(self) -> tuple[ScoreRequest, ...]:
        """What is to be scored behind the step that is planned."""
        requests, self._requests = tuple(self._requests), []
        return requests

    # -- committing -----------------------------------------------------------------------------

    def committed(self, sequence: Sequence, tokens: int) -> None:
        """A step of decoding has committed tokens."""
        if sequence.residency is not None:
            sequence.residency.since += tokens

    def scored(self, results: Iterable[ChunkScores]) -> None:
        """Scores have come; of sequences that have ended, to no effect."""
        for result in results:
            sequence = self._asked.pop(result.lease.slot, None)
            if sequence is None or sequence.lease is not result.lease:
                continue
            if result.read:
                self._await(sequence)
                continue
            residency = sequence.residency
            if residency is not None:
                self.selections += 1
                started = perf_counter_ns()
                evictable = self._tables.evictable(sequence.lease)
                residency.scored(result.values, evictable, keep=result.keep)
                self.choosing += perf_counter_ns() - started

    def forget(self) -> None:
        """Nothing that was planned is carried out."""
        self._requests.clear()
        self._asked.clear()

    # -- inside ---------------------------------------------------------------------------------

    def _await(self, sequence: Sequence) -> None:
        """Have another model read what is new of a sequence, which waits for the scores."""
        lease = sequence.leased
        self._asked[lease.slot] = sequence
        answer = ChunkScores(lease)
        if self._reading is not None:
            chunks = self._tables.length(lease) // CHUNK_POSITIONS
            pending = self._reading.ask(sequence, chunks)
            if pending is None:
                return
            answer = pending
        self.scored([answer])

    def _ask(
        self, sequence: Sequence, residency: Residency, stop: int, *, prompt_ends: bool = False
    ) -> None:
        """Ask for scores if they are due; the rows up to ``stop`` are certain to be kept."""
        reason = residency.due(prompt_ends=prompt_ends)
        if reason is None:
            return
        started = perf_counter_ns()
        lease = sequence.leased
        length = self._tables.length(lease)
        resident, last_used = residency.masks(length, length // CHUNK_POSITIONS)
        residency.asked()
        self._asked[lease.slot] = sequence
        self._requests.append(
            ScoreRequest(
                lease,
                sequence.request.id,
                sequence.known,
                length,
                reason,
                resident,
                last_used,
                self._tables.digest_places(lease),
                self._tables.sequence(lease).started,
                stop,
            )
        )
        self.choosing += perf_counter_ns() - started

    def _move(self, sequence: Sequence, residency: Residency, *, at_once: bool) -> None:
        """Take a selection a step further; ``at_once``: to its end, which the step waits for."""
        lease = sequence.leased
        started = perf_counter_ns()
        if residency.phase is Phase.CHOSEN:
            coming = residency.loads()
            if not at_once:
                self._tables.fetch(lease, *coming)
                self.moving += perf_counter_ns() - started
                return
        if residency.phase is not Phase.LOADING:
            return
        exchange = residency.exchange()
        self._evict(sequence, residency, exchange.leaving)
        self._tables.recall(lease, *exchange.coming)
        residency.recalled(exchange.coming)
        self.exchanges += len(exchange.coming)
        self.moving += perf_counter_ns() - started

    def _make_room(
        self, sequence: Sequence, residency: Residency, needed: int, most: int, last_of: int = 0
    ) -> None:
        started = perf_counter_ns()
        evictable = self._tables.evictable(sequence.leased, needed=last_of)
        leaving = residency.surplus(needed, most, evictable)
        if leaving:
            self._evict(sequence, residency, leaving, last_of)
            self.moving += perf_counter_ns() - started

    def _evict(
        self, sequence: Sequence, residency: Residency, chunks: Collection[int], needed: int = 0
    ) -> None:
        self._tables.evict(sequence.leased, *chunks, needed=needed)
        residency.evicted(chunks, self._tables.length(sequence.leased))
        self.evictions += len(chunks)


def last_tokens_from(prompt: int) -> int:
    """The position from which the last tokens of a prompt are read, after its last selection."""
    return prompt - (prompt % CHUNK_POSITIONS or LAST_TOKENS)
