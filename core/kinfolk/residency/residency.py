"""Which chunks of one sequence are on the device, and when that is decided again. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt

from kinfolk.residency.kept import KeptResidency
from kinfolk.residency.rules import ResidencyRules
from kinfolk.residency.selection import ChunkNumbers, Exchange, Scores, least_worth, select
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
        self._exchange = Exchange()
        # Arrays: of thousands of chunks, objects of their own would be read from memory each time.
        self._here = np.ones(known, np.bool_)
        self._here[np.array(away, np.int64)] = False
        # The committed length at which a chunk that is away left the device.
        self._left = np.full(known, length, np.int64)

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
        if known > self.known:
            self._resize(known)

    def surplus(self, needed: int, most: int, evictable: range) -> list[int]:
        """Chunks to evict so that at most ``most`` of the first ``needed`` chunks, of which the
        last ones may not exist yet, are on the device."""
        over = needed - self.missing - most
        if over <= 0:
            return []
        return least_worth(self._among(evictable, here=True), self.scores, over)

    def evicted(self, chunk: int, length: int) -> None:
        assert self._here[chunk]
        self._here[chunk] = False
        self._left[chunk] = length
        self.missing += 1

    def recalled(self, chunk: int) -> None:
        assert not self._here[chunk]
        self._here[chunk] = True
        self.missing -= 1

    def reopened(self, known: int) -> None:
        """The sequence was off the device as a whole, and is back with the chunks that it saw."""
        self._resize(known)

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
        self.scores = None if scores is None else np.array(scores, np.float64)
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
        chosen, self._exchange = self._exchange, Exchange()
        self.phase = Phase.IDLE
        leaving = tuple(chunk for chunk in chosen.leaving if self._here[chunk])
        return Exchange(leaving, chosen.coming)

    def masks(
        self, length: int, sealed: int
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Of each of the first ``sealed`` chunks: whether it is on the device, and the committed
        length at which it was last."""
        resident = self._here[:sealed].copy()
        return resident, np.where(resident, length, self._left[:sealed])

    # -- inside ---------------------------------------------------------------------------------

    def _among(self, which: range, *, here: bool) -> ChunkNumbers:
        """Those of a range of chunks that are on the device, or those that are not."""
        return np.flatnonzero(self._here[which.start : which.stop] == here) + which.start

    def _resize(self, known: int) -> None:
        """The sequence has so many chunks from now on; new ones are on the device."""
        more = max(0, known - self.known)
        self._here = np.append(self._here[:known], np.ones(more, np.bool_))
        self._left = np.append(self._left[:known], np.zeros(more, np.int64))
        self.known = known
        self.missing = known - int(np.count_nonzero(self._here))
