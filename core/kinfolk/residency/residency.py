"""Which chunks of one sequence are on the device, and when that is decided again. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt

from kinfolk.residency.kept import KeptResidency
from kinfolk.residency.rules import ResidencyRules
from kinfolk.residency.selection import Exchange, least_worth, select, within
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
    """The residency of one sequence: ``resident`` and ``away`` together are its ``known`` chunks.

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
        scores: tuple[float, ...] | None = None,
    ) -> None:
        self.rules = rules
        self.known = known
        self.away = set(away)
        self.resident = set(range(known)) - self.away
        self.since = 0
        self.phase = Phase.IDLE
        self.restored = bool(away)
        self.previewed = False
        self.scores = None if scores is None else np.array(scores, np.float64)
        self._exchange = Exchange()
        # The committed length at which each chunk that is away left the device.
        self._left: dict[int, int] = dict.fromkeys(away, length)

    @property
    def settled(self) -> bool:
        """Whether no selection is under way."""
        return self.phase is Phase.IDLE

    def grow(self, known: int) -> None:
        """The sequence has chunks up to ``known`` from now on."""
        self.resident.update(range(self.known, known))
        self.known = max(self.known, known)

    def surplus(self, needed: int, most: int, evictable: range) -> list[int]:
        """Chunks to evict so that at most ``most`` of the first ``needed`` chunks, of which the
        last ones may not exist yet, are on the device."""
        over = len(self.resident) + needed - self.known - most
        if over <= 0:
            return []
        return least_worth(within(self.resident, evictable), self.scores, over)

    def evicted(self, chunk: int, length: int) -> None:
        self.resident.remove(chunk)
        self.away.add(chunk)
        self._left[chunk] = length

    def recalled(self, chunk: int) -> None:
        self.away.remove(chunk)
        self.resident.add(chunk)
        self._left.pop(chunk, None)

    def reopened(self, known: int) -> None:
        """The sequence was off the device as a whole, and is back with the chunks that it saw."""
        self.known = known
        self.resident = {chunk for chunk in self.resident if chunk < known}

    def kept(self) -> KeptResidency:
        """What a prefix that is stored now remembers."""
        scores = None if self.scores is None else tuple(self.scores.tolist())
        return KeptResidency(frozenset(self.resident), scores)

    # -- selections -----------------------------------------------------------------------------

    def due(self, committed: int = 0, *, prompt_ends: bool = False) -> ScoreReason | None:
        """Why chunks are to be scored behind the next step, if they are; ``committed`` more tokens
        will be there then. Nothing is due while nothing is away."""
        if not (self.rules.scored and self.away and self.settled):
            return None
        if prompt_ends:
            return "prompt"
        if self.restored:
            return "prefix"
        return "interval" if self.since + committed >= self.rules.tau else None

    def asked(self) -> None:
        self.phase = Phase.ASKED
        self.since, self.restored = 0, False

    def scored(self, scores: tuple[float, ...] | None, evictable: range, *, keep: bool) -> None:
        """The scores of a selection have come; ``None``: by recency. ``keep``: all stays."""
        if self.phase is not Phase.ASKED:
            return
        self.phase = Phase.IDLE
        if keep:
            return
        self.scores = None if scores is None else np.array(scores, np.float64)
        self._exchange = select(
            within(self.resident, evictable),
            within(self.away, evictable),
            self.scores,
            self.rules.decoding - len(self.resident),
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
        leaving = tuple(chunk for chunk in chosen.leaving if chunk in self.resident)
        return Exchange(leaving, chosen.coming)

    def masks(
        self, length: int, sealed: int
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Of each of the first ``sealed`` chunks: whether it is on the device, and the committed
        length at which it was last."""
        resident, last_used = np.zeros(sealed, np.bool_), np.full(sealed, length, np.int64)
        resident[within(self.resident, range(sealed))] = True
        count = len(self._left)
        last_used[np.fromiter(self._left, np.int64, count)] = np.fromiter(
            self._left.values(), np.int64, count
        )
        return resident, last_used
