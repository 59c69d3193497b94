"""How many drafted rows each decoding sequence gets in a step."""

from __future__ import annotations

import logging
import operator
from itertools import islice

from kinfolk.draft_api import Drafter
from kinfolk.sched.draft_counts import DraftMode
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import Item, ItemKind, ItemResult, StepPlan
from kinfolk.sched.request import Sequence
from kinfolk.sched.widths import CostWidths, FixedWidths, Widths, fair_widths

log = logging.getLogger(__name__)


class Drafts:
    """Asks the drafter, and shrinks drafts to the rows that are left.

    A drafter can never harm a request: its first exception is logged, all are counted, and a token
    that does not exist ends the draft.
    """

    def __init__(self, limits: SchedulerLimits, drafter: Drafter | None) -> None:
        self._limits = limits
        self._drafter = drafter
        self.failures = 0
        cost = limits.widths == "cost" and limits.proposed > 0
        self._widths: Widths = CostWidths(limits.proposed) if cost else FixedWidths()
        self._pays = True
        self._drafted = False

    def mode(self, sequence: Sequence) -> DraftMode:
        """What is drafted for a sequence."""
        if not sequence.request.draft or (self._drafter is None and not self._limits.proposed):
            return "off"
        return "tree" if self._limits.proposes_trees else "chain"

    def follows(self, sequence: Sequence) -> bool:
        """Whether a draft of the host may follow what the sequence emits."""
        return self._drafter is not None and sequence.request.draft

    def proposes(self, sequences: list[Sequence]) -> list[bool]:
        """Whether the device should propose what follows the next step, for each sequence that
        decodes in it."""
        rows = self._limits.proposed
        most = [s.request.draft_rows(rows) * self._may_propose(s) for s in sequences]
        if any(most):
            found = self._widths.propose(sequences, most)
            self._pays = any(found)
            return found
        return [False] * len(sequences)

    def proposes_first(self, sequence: Sequence) -> bool:
        """Whether the device should propose what follows the first token of a sequence."""
        return self._pays and self._may_propose(sequence)

    def proposed(self, sequences: list[Sequence], rows: int) -> list[int]:
        """How many of the rows that the device has proposed each sequence gets, ``rows`` in all."""
        if not self._limits.proposed:
            return [0] * len(sequences)
        return self._widths.choose(sequences, list(map(self._usable, sequences)), rows)

    def verified(self, sequence: Sequence, item: Item, outcome: ItemResult) -> None:
        """Learn from the proposed rows of an item."""
        if item.proposed:
            self._widths.verified(sequence, item.proposed, outcome.path)

    def timed(self, plan: StepPlan, seconds: float) -> None:
        """Learn from the time of a step, if it had no slices."""
        drafted, self._drafted = self._drafted, any(item.propose for item in plan.items)
        if seconds and all(item.kind is not ItemKind.PREFILL for item in plan.items):
            self._widths.timed(plan.rows, len(plan.items), seconds, drafted=drafted)

    def propose(self, sequences: list[Sequence], rows: int) -> list[tuple[int, ...]]:
        """One draft for each sequence, ``rows`` tokens at most in all."""
        drafter = self._drafter
        if drafter is None or rows <= 0:
            return [()] * len(sequences)
        drafts = [self._ask(drafter, sequence, rows) for sequence in sequences]
        if sum(map(len, drafts)) <= rows:
            return drafts
        widths = fair_widths([len(draft) for draft in drafts], rows)
        return [draft[:width] for draft, width in zip(drafts, widths, strict=True)]

    def release(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._widths.release(sequence)
        if self._drafter is None:
            return
        try:
            self._drafter.release(sequence.known)
        except Exception:
            self._note_failure()

    def _may_propose(self, sequence: Sequence) -> bool:
        # The next step emits a token at least, and so does the one that verifies.
        return self._limits.proposed > 0 and sequence.request.draft and sequence.remaining > 2

    def _usable(self, sequence: Sequence) -> int:
        left = sequence.remaining - 1
        width = sequence.request.draft_rows(sequence.proposed)
        if self._limits.proposes_trees:  # several rows may compete for one token
            return width if left else 0
        return min(width, left)

    def _note_failure(self) -> None:
        """Called in an ``except`` block. One traceback says it all; the rest is counted."""
        if not self.failures:
            log.exception("%r failed; going on without its drafts", self._drafter)
        self.failures += 1

    def _ask(self, drafter: Drafter, sequence: Sequence, rows: int) -> tuple[int, ...]:
        # A step emits one token more than it accepts, so more drafts could not be used.
        most = sequence.request.draft_rows(self._limits.max_draft)
        limit = min(most, sequence.remaining - 1, rows)
        if limit <= 0:
            return ()
        try:
            proposed = drafter.propose(sequence.known, limit)
            draft = tuple(map(operator.index, islice(proposed, limit)))
        except Exception:
            self._note_failure()
            sequence.drafts.failures += 1
            return ()
        if self._limits.vocabulary is not None:
            for place, token in enumerate(draft):
                if not 0 <= token < self._limits.vocabulary:
                    return draft[:place]
        return draft
