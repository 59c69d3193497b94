"""Which chunks of one sequence are on the device, and when that is decided again. Torch-free."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt

from kinfolk.residency.kept import KeptResidency
from kinfolk.residency.rules import ResidencyRules
from kinfolk.residency.selection import (
    NO_EXCHANGE,
    ChunkNumbers,
    Exchange,
    Scores,
    least_worth,
    select,
)
from kinfolk.score_api import ScoreReason


class Phase(Enum):
    """How far a selection has come.

    IDLE     none is under way
    ASKED    a step is scoring the chunks
    CHOSEN   the scores are there: the next plan loads what is to come
    LOADING  loads are under way: the next plan exchanges chunks
    """

    IDLE = "idle"
    ASKED = "asked"
    CHOSEN = "chosen"
    LOADING = "loading"


class Residency:
    """The residency of one sequence: ``resident`` and ``away`` together are its ``known`` chunks,
    and ``missing`` is the number of those away.

    What it decides depends on the sequence alone: on committed lengths and scores, never on when
    scores or bytes arrive, or on other sequences. ``since`` counts the tokens committed since the
    last selection.
    """

    def __init__(
        self,
        rules: ResidencyRules,
        length: int,
        known: int,
        away: Sequence[int],
        scores: Scores = None,
    ) -> None:
        self.rules = rules
        self.known = known
        self.missing = len(away)
        self.since = 0
        self.phase = Phase.IDLE
        self.restored = bool(away)
        self.previewed = False
        self.scores = None if scores is None else np.array(scores, np.float64)
        self._exchange = NO_EXCHANGE
        # Whether a chunk is on the device, and the committed length at which it left. Of thousands
        # of chunks, objects of their own would be read from memory each time. Both are longer than
        # the sequence: the chunks that it will have are on the device.
        self._here = bytearray(b"\1" * 2 * known)
        self._left = array("q", [length]) * (2 * known)
        for chunk in away:
            self._here[chunk] = 0

    @property
    def resident(self) -> ChunkNumbers:
        """The chunks on the device."""
        return self._among(range(self.known), here=True)

    @property
    def away(self) -> ChunkNumbers:
        """The chunks that are not."""
        return self._among(range(self.known), here=False)

    @property
    def settled(self) -> bool:
        """Whether no selection is under way."""
        return self.phase is Phase.IDLE

    def grow(self, known: int) -> None:
        """The sequence has chunks up to ``known`` from now on."""
        if known > len(self._here):
            more = 2 * known - len(self._here)
            self._here = self._here + b"\1" * more
            self._left = self._left + array("q", [0]) * more
        self.known = max(self.known, known)

    def surplus(self, needed: int, most: int, evictable: range) -> list[int]:
        """Chunks to evict so that at most ``most`` of the first ``needed`` chunks, of which the
        last ones may not exist yet, are on the device."""
        over = needed - self.missing - most
        if over <= 0:
            return []
        if self.scores is None:
            return self._first_here(evictable, over)
        return least_worth(self._among(evictable, here=True), self.scores, over)

    def evicted(self, chunks: Collection[int], length: int) -> None:
        for chunk in chunks:
            assert self._here[chunk]
            self._here[chunk] = 0
            self._left[chunk] = length
        self.missing += len(chunks)

    def recalled(self, chunks: Collection[int]) -> None:
        for chunk in chunks:
            assert not self._here[chunk]
            self._here[chunk] = 1
        self.missing -= len(chunks)

    def reopened(self, known: int) -> None:
        """The sequence was off the device as a whole, and is back with the chunks that it saw."""
        self.grow(known)
        self.known = known
        self._here[known:] = b"\1" * (len(self._here) - known)
        self.missing = self._here.count(0)

    def kept(self) -> KeptResidency:
        """What a prefix that is stored now remembers."""
        scores = None if self.scores is None else tuple(self.scores.tolist())
        return KeptResidency(frozenset(self.resident.tolist()), scores)

    # -- selections -----------------------------------------------------------------------------

    def due(self, committed: int = 0, *, prompt_ends: bool = False) -> ScoreReason | None:
        """Why chunks are to be scored behind the next step, if they are; ``committed`` more tokens
        will be there then. Nothing is due while nothing is away."""
        if not (self.rules.scored and self.missing and self.settled):
            return None
        if prompt_ends:
            return "prompt"
        if self.restored:
            return "prefix"
        return "interval" if self.since + committed >= self.rules.tau else None

    def asked(self) -> None:
        self.phase = Phase.ASKED
        self.since, self.restored = 0, False

    def scored(self, scores: Scores, evictable: range, *, keep: bool) -> None:
        """The scores of a selection have come; ``None``: by recency. ``keep``: all stays."""
        if self.phase is not Phase.ASKED:
            return
        self.phase = Phase.IDLE
        if keep:
            return
        self.scores = None if scores is None else np.asarray(scores, np.float64)
        self._exchange = select(
            self._among(evictable, here=True),
            self._among(evictable, here=False),
            self.scores,
            self.rules.decoding - (self.known - self.missing),
            self.rules.burst,
        )
        if self._exchange.coming:
            self.phase = Phase.CHOSEN

    def loads(self) -> tuple[int, ...]:
        """What is to be loaded now; the exchange follows with the next plan of the sequence."""
        self.phase = Phase.LOADING
        return self._exchange.coming

    def exchange(self) -> Exchange:
        """The exchange, now. Of what leaves, some may have been evicted since."""
        chosen, self._exchange = self._exchange, NO_EXCHANGE
        self.phase = Phase.IDLE
        leaving = tuple(filter(self._here.__getitem__, chosen.leaving))
        return Exchange(leaving, chosen.coming)

    def masks(
        self, length: int, sealed: int
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Of each of the first ``sealed`` chunks: whether it is on the device, and the committed
        length at which it was last."""
        resident = np.frombuffer(self._here[:sealed], np.bool_)
        return resident, np.where(resident, length, np.frombuffer(self._left, np.int64, sealed))

    # -- inside ---------------------------------------------------------------------------------

    def _among(self, which: range, *, here: bool) -> ChunkNumbers:
        """Those of a range of chunks that are on the device, or those that are not."""
        flags = np.frombuffer(self._here, np.bool_)[which.start : which.stop]
        (found,) = (flags if here else ~flags).nonzero()
        return found + which.start

    def _first_here(self, which: range, count: int) -> list[int]:
        """The first ``count`` of a range of chunks that are on the device: mostly one, which is
        found without arrays."""
        found: list[int] = []
        after = which.start
        while len(found) < count and (chunk := self._here.find(1, after, which.stop)) >= 0:
            found.append(chunk)
            after = chunk + 1
        return found
