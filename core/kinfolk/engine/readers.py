"""The models that read beside the one that answers: texts to score their tokens, and sequences to
score their chunks. Each has weights and state of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from kinfolk.engine.loading import Progress
from kinfolk.engine.prompt_scorer import PendingReading, PromptScorer
from kinfolk.residency.read_tokens import SameTokens, StartReading, TokensThroughText
from kinfolk.sched.chunk_reading import ChunkReading
from kinfolk.sched.plan import CHUNK_SCORER_MODEL, SCORER_MODEL, ReadingSlice
from kinfolk.sched.readings import Readings
from kinfolk.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Readers:
    """``prompts`` scores the tokens of prompts, ``chunks`` the chunks of sequences, whose tokens it
    reads as those that ``start`` makes."""

    prompts: PromptScorer | None = None
    chunks: PromptScorer | None = None
    start: StartReading | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the device that they were planned with."""
        return sum(each.nbytes for each in self._all())

    def books(self) -> Readings:
        """What plans their items."""
        chunks = None
        if self.chunks is not None and self.start is not None:
            chunks = ChunkReading(self.chunks.limits, self.chunks.kv_cache, self.start)
        return Readings(None if self.prompts is None else self.prompts.books(), chunks)

    def launch(self, slices: Sequence[ReadingSlice]) -> list[PendingReading]:
        """Launch the slices of a step; the host does not wait."""
        models = {SCORER_MODEL: self.prompts, CHUNK_SCORER_MODEL: self.chunks}
        pending = []
        for planned in slices:
            reader = models[planned.item.model]
            assert reader is not None
            pending.append(reader.launch(planned))
        return pending

    def forget(self) -> None:
        """Nothing of what was read is left."""
        for each in self._all():
            each.state.forget()

    def park(self) -> None:
        """Free weights and state. Nothing may be under way."""
        for each in self._all():
            each.park()

    def unpark(self, progress: Progress | None = None) -> None:
        """Load what was freed again."""
        for each in self._all():
            each.unpark(progress)

    def close(self) -> None:
        for each in self._all():
            each.close()

    def _all(self) -> Iterator[PromptScorer]:
        return (each for each in (self.prompts, self.chunks) if each is not None)


def start_reading(tokenizer: Tokenizer, reader: PromptScorer) -> StartReading:
    """How the tokens of one model are read by another: as ids if both have the same tokens, else as
    text."""
    if tokenizer.has_tokens_of(reader.tokenizer):
        return partial(SameTokens, reader.loaded.info.vocabulary)
    return partial(TokensThroughText, tokenizer, reader.tokenizer)
