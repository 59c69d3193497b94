"""What each decoding sequence verifies in a step, and what is proposed behind it."""

from __future__ import annotations

import logging
import operator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from kinfolk.draft_api import Drafter
from kinfolk.sched.cost_widths import CostWidths
from kinfolk.sched.draft_counts import DraftCounts, DraftMode
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import Item, ItemKind, ItemResult, StepPlan
from kinfolk.sched.request import Sequence
from kinfolk.sched.widths import (
    CHAIN_SOURCE,
    TREE_SOURCE,
    Candidate,
    ConfidenceWidths,
    FixedWidths,
    Proposable,
    Widths,
    host_source,
    mode_of,
)

log = logging.getLogger(__name__)

MAX_FAILURES: Final = 8
"""Steps whose drafts of the device fail, one after another, before no more are asked for."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a step verifies of a sequence: ``tokens`` that the host drafted, or the first
    ``proposed`` rows of what the device proposed, a ``tree`` or a chain."""

    tokens: tuple[int, ...] = ()
    proposed: int = 0
    tree: bool = False


class Drafts:
    """Asks the drafters, and shrinks drafts to the rows that are left.

    A drafter can never harm a request: its first exception is logged, all are counted, and a token
    that does not exist ends the draft.
    """

    def __init__(self, limits: SchedulerLimits, drafter: Drafter | None) -> None:
        self._limits = limits
        self._drafter = drafter
        self.failures = 0
        self._widths = _policy(limits)
        self._first: DraftMode = "chain" if limits.proposed_chain else "tree"
        self._drafted = False
        self._failed = 0
        self.device_proposes = True
        """Whether the device is asked to propose."""

    def mode(self, sequence: Sequence) -> DraftMode:
        """What is drafted for a sequence."""
        if not sequence.request.draft or (self._drafter is None and not self._limits.proposed):
            return "off"
        limits, asked = self._limits, sequence.request.draft_mode
        if not limits.proposed_tree or (asked == "chain" and limits.proposed_chain):
            return "chain"
        trees = asked == "tree" or not limits.proposed_chain or sequence.drafts.trees
        return "tree" if trees else "chain"

    def counts(self, sequence: Sequence) -> DraftCounts:
        """What has become of the drafts of a sequence."""
        mode = self.mode(sequence)
        return sequence.drafts.counts(mode, given_up=self._given_up and mode != "off")

    # -- planning -----------------------------------------------------------------------------

    def choose(self, sequences: list[Sequence], rows: int) -> list[Chosen]:
        """What the next step verifies of each sequence, ``rows`` drafted rows in all. Of two drafts
        for a sequence, it is the one of which more will be accepted."""
        if rows <= 0:
            return [Chosen()] * len(sequences)
        found = [self._ask(sequence, rows) for sequence in sequences]
        drafts = [self._better(s, draft) for s, draft in zip(sequences, found, strict=True)]
        widths = self._widths.choose(drafts, rows, drafted=self._drafted)
        return [
            self._chosen(draft, tokens, width)
            for draft, tokens, width in zip(drafts, found, widths, strict=True)
        ]

    def proposes(
        self, sequences: list[Sequence], chosen: list[Chosen], rows: int
    ) -> list[DraftMode]:
        """What the device should propose behind the next step, for each sequence in it. The step
        behind it may verify ``rows`` drafted rows in all."""
        if not self._limits.proposed:
            return ["off"] * len(sequences)
        wishes = [
            # A text that is being copied is copied on.
            Proposable(s, 0) if each.tokens and s.copies else self._proposable(s)
            for s, each in zip(sequences, chosen, strict=True)
        ]
        if not any(wish.chain or wish.tree for wish in wishes):
            return ["off"] * len(sequences)
        modes = self._widths.propose(wishes, rows)
        self._first = max(modes, key=("off", "chain", "tree").index)
        return modes

    def proposes_first(self, sequence: Sequence) -> DraftMode:
        """What the device should propose behind the first token of a sequence."""
        wish = self._proposable(sequence)
        if self._first == "off" or not (wish.chain or wish.tree):
            return "off"
        return mode_of(wish.candidate(tree=self._first == "tree"))

    def overlaps(self, sequences: list[Sequence]) -> bool:
        """Whether a step may be planned before the one before it is known. Drafters of the host are
        asked about what is known: what they find now, they will find then."""
        proposing = any(map(self._may_propose, sequences))
        if proposing and not self._widths.passed():
            return False
        if self._drafter is None:
            return True
        found = [self._ask(sequence, self._limits.max_draft + 1) for sequence in sequences]
        # The first token of each is what the step under way chooses.
        drafts = [
            Candidate(sequence, max(0, len(draft) - 1), host_source(max(0, len(draft) - 1)))
            for sequence, draft in zip(sequences, found, strict=True)
        ]
        return not any(draft.rows for draft in drafts) or not self._widths.pays(drafts)

    # -- learning -----------------------------------------------------------------------------

    def verified(self, sequence: Sequence, item: Item, outcome: ItemResult) -> None:
        """Learn from the drafted rows of an item."""
        host = len(item.tokens) - 1
        sequence.copies = host > 0 and outcome.kept == item.rows
        if item.kind is not ItemKind.VERIFY:
            return
        path = range(1, outcome.kept) if host else outcome.path
        source = sequence.draft_source
        self._widths.verified(Candidate(sequence, item.rows - 1, source), path)

    def proposed(self, sequence: Sequence, item: Item, outcome: ItemResult) -> None:
        """Note what the device has proposed for a sequence."""
        asked = item.propose != "off"
        tree = sequence.proposed_tree = item.propose == "tree"
        chain = min(self._limits.proposed_chain, outcome.proposed)
        rows = self._limits.proposed_tree if tree else chain
        sequence.proposed = rows if asked and outcome.proposed else 0
        sequence.confidence = outcome.confidence
        sequence.drafts.failures += asked and not outcome.proposed

    def drafted(self, plan: StepPlan, outcomes: list[ItemResult]) -> None:
        """Learn whether the device has proposed what a step asked for. A drafter that fails step
        after step is not asked any more."""
        pairs = zip(plan.items, outcomes, strict=True)
        asked = [each for item, each in pairs if item.propose != "off" and each.error is None]
        if asked:
            self._failed = 0 if any(each.proposed for each in asked) else self._failed + 1

    def reloaded(self) -> None:
        """The drafter of the device was loaded again: it is asked, however often it has failed."""
        self._failed = 0

    def timed(self, plan: StepPlan, seconds: float) -> None:
        """Learn from the time of a step, if it had no slices."""
        drafted, self._drafted = self._drafted, any(item.propose != "off" for item in plan.items)
        if seconds and not any(item.of_prompt for item in plan.items):
            tree = any(item.is_tree for item in plan.items)
            self._widths.timed(plan.rows, len(plan.items), seconds, drafted=drafted, tree=tree)

    def release(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        self._widths.release(sequence)
        if self._drafter is None:
            return
        try:
            self._drafter.release(sequence.known)
        except Exception:
            self._note_failure()

    # -- one sequence -------------------------------------------------------------------------

    @property
    def _given_up(self) -> bool:
        return self._failed >= MAX_FAILURES

    def _may_propose(self, sequence: Sequence) -> bool:
        # The next step emits a token at least, and so does the one that verifies.
        works = self.device_proposes and not self._given_up and self._limits.proposed > 0
        return works and sequence.request.draft and sequence.remaining > 2

    def _proposable(self, sequence: Sequence) -> Proposable:
        """What may be proposed for a sequence: in the mode that its request asks for, if there is
        such a mode."""
        if not self._may_propose(sequence):
            return Proposable(sequence, 0)
        limits, mode = self._limits, sequence.request.draft_mode
        chain, tree = limits.proposed_chain, limits.proposed_tree
        if mode == "tree" and tree:
            chain = 0
        elif mode == "chain" and chain:
            tree = 0
        return Proposable(sequence, self._rows(sequence, chain), self._rows(sequence, tree))

    def _better(self, sequence: Sequence, draft: tuple[int, ...]) -> Candidate:
        """The host's draft for a sequence, or what the device has proposed."""
        host = Candidate(sequence, len(draft), host_source(len(draft)))
        source = TREE_SOURCE if sequence.proposed_tree else CHAIN_SOURCE
        device = Candidate(sequence, self._usable(sequence), source)
        if not device.rows or not host.rows:
            return host if host.rows else device
        expected, other = self._widths.expected(host), self._widths.expected(device)
        first = expected >= other if self._limits.host_first else expected > other
        return host if first else device

    def _rows(self, sequence: Sequence, most: int) -> int:
        """Rows to draft for a sequence, of ``most``."""
        width = self._limits.draft_width
        return sequence.request.draft_rows(most if width is None else min(most, width))

    def _usable(self, sequence: Sequence) -> int:
        left = sequence.budget - 1
        width = self._rows(sequence, sequence.proposed)
        if not sequence.proposed_tree or not left:
            return min(width, left)
        # Several rows may compete for one token, but none may stand behind the context. Of a tree,
        # the first n rows are at most n deep.
        room = self._limits.context - 1 - sequence.computed
        deepest = self._limits.proposed_depth or width
        return width if deepest <= room else min(width, room)

    def _chosen(self, draft: Candidate, tokens: tuple[int, ...], width: int) -> Chosen:
        draft.sequence.draft_source = draft.source
        if draft.source in (CHAIN_SOURCE, TREE_SOURCE):
            return Chosen(proposed=width, tree=draft.source == TREE_SOURCE)
        return Chosen(tokens[:width])

    def _note_failure(self) -> None:
        """Called in an ``except`` block. One traceback says it all; the rest is counted."""
        if not self.failures:
            log.exception("%r failed; going on without its drafts", self._drafter)
        self.failures += 1

    def _ask(self, sequence: Sequence, rows: int) -> tuple[int, ...]:
        """The host's draft for a sequence."""
        drafter = self._drafter
        if drafter is None:
            return ()
        # A step emits one token more than it accepts, so more drafts could not be used.
        most = self._rows(sequence, self._limits.max_draft)
        limit = min(most, sequence.budget - 1, rows)
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


def _policy(limits: SchedulerLimits) -> Widths:
    if limits.widths == "cost":
        return CostWidths()
    return ConfidenceWidths() if limits.widths == "confidence" else FixedWidths()
