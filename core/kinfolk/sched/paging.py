"""Paging on behalf of requests: chunks of sequences that are longer than their budget leave the
device and come back.

Everything is a function of the sequence's own steps. Chunks leave when a row needs their place.
A selection takes three steps of its sequence: the first one is scored, the plan of the second one
loads chunks into spare blocks while its step runs, and the plan of the third one exchanges them.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from kinfolk.residency.residency import Phase, Residency
from kinfolk.residency.rules import ResidencyRules
from kinfolk.sched.plan import ChunkScores, ScoreRequest
from kinfolk.sched.request import Sequence
from kinfolk.state.geometry import chunks_for
from kinfolk.state.hashed_tokens import HashedTokens
from kinfolk.state.sequence_tables import SequenceTables
from kinfolk.types import CHUNK_POSITIONS

LAST_TOKENS = CHUNK_POSITIONS - 1
"""Most tokens of a prompt that are read after its last selection."""


class Paging:
    """Decides what leaves and comes back; without ``rules``, nothing does.

    ``exchanges`` and ``selections`` count chunks that came back and scores that came, ``evictions``
    chunks that left.
    """

    def __init__(self, rules: ResidencyRules | None, tables: SequenceTables) -> None:
        self.rules = rules
        self.evictions = 0
        self.exchanges = 0
        self.selections = 0
        self._tables = tables
        self._requests: list[ScoreRequest] = []
        self._asked: dict[int, Sequence] = {}

    def stats(self) -> dict[str, int]:
        """Counters since the start, and the budget of a sequence in tokens, 0 = there is none."""
        return {
            "kvflash_tokens": 0 if self.rules is None else self.rules.chunks * CHUNK_POSITIONS,
            "kvflash_evictions": self.evictions,
            "kvflash_recalls": self.exchanges,
            "kvflash_selections": self.selections,
        }

    def resident(self, positions: int) -> int | None:
        """The budget of a sequence of so many positions, ``None`` if it needs none."""
        if self.rules is None or chunks_for(positions) <= self.rules.chunks:
            return None
        return self.rules.chunks

    def salt(self, tokens: HashedTokens) -> HashedTokens:
        """The same tokens for prefixes of sequences that missed something: they are found by those
        with the same rules only."""
        text = f"{tokens.chain[0]} {self.rules}".encode()
        root = int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
        return tokens.with_root(root)

    def away(self, length: int, prompt: int) -> range:
        """Full chunks that a paged sequence starts without, if its first ``length`` positions are
        there and its prompt has ``prompt`` tokens: all that its first slice leaves no room for."""
        if self.rules is None:
            return range(0)
        rows = min(self.rules.slice_rows(prompt), prompt - length)
        kept = self.rules.decoding - max(1, chunks_for(length + rows) - chunks_for(length))
        first = self.rules.sink
        return range(first, max(first, chunks_for(length) - max(self.rules.tail, kept - first)))

    def started(self, sequence: Sequence) -> None:
        """A sequence has got a slot."""
        seq = self._tables.sequence(sequence.leased)
        if self.rules is None or not seq.paged:
            return
        if sequence.residency is not None:
            sequence.residency.reopened(chunks_for(seq.extended))
            return
        away = sorted(self._tables.away(sequence.leased))
        known = chunks_for(seq.extended)
        sequence.residency = Residency(self.rules, seq.length, known, away)

    # -- planning -------------------------------------------------------------------------------

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
            and bool(residency.away)
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
        self._make_room(sequence, residency, needed, residency.rules.decoding)
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
            residency = sequence.residency
            if residency is not None:
                self.selections += 1
                evictable = self._tables.evictable(sequence.lease)
                residency.scored(result.values, evictable, keep=result.keep)

    def forget(self) -> None:
        """Nothing that was planned is carried out."""
        self._requests.clear()
        self._asked.clear()

    # -- inside ---------------------------------------------------------------------------------

    def _ask(
        self, sequence: Sequence, residency: Residency, stop: int, *, prompt_ends: bool = False
    ) -> None:
        """Ask for scores if they are due; the rows up to ``stop`` are certain to be kept."""
        reason = residency.due(prompt_ends=prompt_ends)
        if reason is None:
            return
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

    def _move(self, sequence: Sequence, residency: Residency, *, at_once: bool) -> None:
        """Take a selection a step further; ``at_once``: to its end, which the step waits for."""
        lease = sequence.leased
        if residency.phase is Phase.CHOSEN:
            coming = residency.loads()
            if not at_once:
                for chunk in coming:
                    self._tables.fetch(lease, chunk)
                return
        if residency.phase is not Phase.LOADING:
            return
        exchange = residency.exchange()
        for chunk in exchange.leaving:
            self._evict(sequence, residency, chunk)
        for chunk in exchange.coming:
            self._tables.recall(lease, chunk)
            residency.recalled(chunk)
            self.exchanges += 1

    def _make_room(self, sequence: Sequence, residency: Residency, needed: int, most: int) -> None:
        evictable = self._tables.evictable(sequence.leased)
        for chunk in residency.surplus(needed, most, evictable):
            self._evict(sequence, residency, chunk)

    def _evict(self, sequence: Sequence, residency: Residency, chunk: int) -> None:
        self._tables.evict(sequence.leased, chunk)
        residency.evicted(chunk, self._tables.length(sequence.leased))
        self.evictions += 1


def last_tokens_from(prompt: int) -> int:
    """The position from which the last tokens of a prompt are read, after its last selection."""
    return prompt - (prompt % CHUNK_POSITIONS or LAST_TOKENS)
