"""What other models read beside the steps of the one that answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kinfolk.residency.read_tokens import ReadTokens
from kinfolk.residency.rules import ResidencyRules
from kinfolk.sched.acceptance import positions_of
from kinfolk.sched.chunk_reading import ChunkReading
from kinfolk.sched.paging import Paging
from kinfolk.sched.plan import SCORER_MODEL, ReadingResult, ReadingSlice
from kinfolk.sched.prompt_scoring import PromptScoring
from kinfolk.sched.request import Request
from kinfolk.state.geometry import chunks_for


@dataclass(slots=True)
class Readings:
    """Texts whose tokens are scored, and sequences whose chunks are. A step has at most a slice of
    each."""

    texts: PromptScoring | None = None
    chunks: ChunkReading | None = None

    @property
    def busy(self) -> bool:
        """Whether there is something to read."""
        texts, chunks = self.texts, self.chunks
        return (texts is not None and texts.busy) or (chunks is not None and chunks.busy)

    def read(self, request: Request, rules: ResidencyRules | None) -> ReadTokens | None:
        """The prompt of a request as it is read to score its chunks, if there are more of them than
        the rules allow. Any thread may ask."""
        fits = rules is None or chunks_for(positions_of(request)) <= rules.chunks
        if self.chunks is None or fits:
            return None
        return self.chunks.read(request)

    def plan(self) -> tuple[ReadingSlice, ...]:
        """The slices of the next step."""
        planned = (each.plan() for each in (self.texts, self.chunks) if each is not None)
        return tuple(each for each in planned if each is not None)

    def commit(self, results: Iterable[ReadingResult], paging: Paging) -> None:
        """Apply what became of the slices of a step; scores of chunks go to ``paging``."""
        for result in results:
            if result.model == SCORER_MODEL and self.texts is not None:
                self.texts.commit(result)
            elif self.chunks is not None:
                paging.scored(self.chunks.commit(result))

    def fail_all(self, error: str) -> None:
        """The state on the device is lost."""
        if self.texts is not None:
            self.texts.fail_all(error)
        if self.chunks is not None:
            self.chunks.forget()

    def loaded_again(self) -> None:
        """The models were loaded anew: what had failed is tried without a wait."""
        if self.chunks is not None:
            self.chunks.back_off.succeeded()

    def stats(self) -> dict[str, int]:
        texts = {} if self.texts is None else self.texts.stats()
        return texts | ({} if self.chunks is None else self.chunks.stats())
