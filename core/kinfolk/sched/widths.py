"""How many drafted rows of each sequence a step verifies: the policies, but for that by cost."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import Final, Protocol

from kinfolk.sched.draft_counts import DraftMode
from kinfolk.sched.request import Sequence

CONFIDENCE: Final = 0.2
"""A row is verified by confidence while the drafter gives its path this chance, as lucebox does."""

CHAIN_SOURCE: Final = 0
"""The source of a chain that the device proposes."""

TREE_SOURCE: Final = -1
"""The source of a tree that the device proposes."""


def host_source(tokens: int) -> int:
    """The source of a draft of the host with so many tokens. A drafter of the host drafts more
    where it is surer, so short drafts say nothing of long ones."""
    return tokens.bit_length()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A draft that a step may verify: at most ``rows`` rows for a sequence, from a source."""

    sequence: Sequence
    rows: int
    source: int = CHAIN_SOURCE


@dataclass(frozen=True, slots=True)
class Proposable:
    """What the device could propose for a sequence: the rows of a chain and of a tree, 0 = none."""

    sequence: Sequence
    chain: int
    tree: int = 0

    def candidate(self, *, tree: bool) -> Candidate:
        """The tree or the chain, or the one that there is."""
        if self.tree and (tree or not self.chain):
            return Candidate(self.sequence, self.tree, TREE_SOURCE)
        return Candidate(self.sequence, self.chain)


class Widths(Protocol):
    """A policy of widths. Sequences are those that decode in a step."""

    def choose(self, drafts: Several[Candidate], rows: int, *, drafted: bool) -> list[int]:
        """The rows of each draft that the next step verifies, ``rows`` in all. ``drafted``: the
        device has drafted for it, whatever is chosen now."""
        ...

    def expected(self, draft: Candidate) -> float:
        """Tokens of a draft that will be accepted, to choose among two drafts of a sequence."""
        ...

    def pays(self, drafts: Several[Candidate]) -> bool:
        """Whether drafts of the host would be verified if the step were planned now."""
        ...

    def propose(self, sequences: Several[Proposable], rows: int) -> list[DraftMode]:
        """What the device should propose behind this step, for each sequence; the next step may
        verify ``rows`` rows of drafts in all."""
        ...

    def passed(self) -> bool:
        """A step is planned without being asked about. False if the policy must be asked."""
        ...

    def verified(self, draft: Candidate, path: Several[int]) -> None:
        """Of the rows 1 to ``draft.rows``, those in ``path`` were kept."""
        ...

    def timed(
        self, rows: int, sequences: int, seconds: float, *, drafted: bool, tree: bool
    ) -> None:
        """A step without slices took so long; ``drafted``: with the draft before it; ``tree``: with
        a tree in it."""
        ...

    def release(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        ...


class FixedWidths:
    """All rows, shared fairly where there is no room for all."""

    def choose(self, drafts: Several[Candidate], rows: int, *, drafted: bool) -> list[int]:
        most = [self.rows(draft) for draft in drafts]
        return most if sum(most) <= rows else fair_widths(most, max(0, rows))

    def rows(self, draft: Candidate) -> int:
        """Rows of a draft to verify if there is room."""
        return draft.rows

    def expected(self, draft: Candidate) -> float:
        return float(draft.rows)

    def pays(self, drafts: Several[Candidate]) -> bool:
        return any(draft.rows for draft in drafts)

    def propose(self, sequences: Several[Proposable], rows: int) -> list[DraftMode]:
        return [mode_of(each.candidate(tree=False)) for each in sequences]

    def passed(self) -> bool:
        return True

    def verified(self, draft: Candidate, path: Several[int]) -> None:
        """Nothing is learned."""

    def timed(
        self, rows: int, sequences: int, seconds: float, *, drafted: bool, tree: bool
    ) -> None:
        """Nothing is learned."""

    def release(self, sequence: Sequence) -> None:
        """Nothing is kept."""


class ConfidenceWidths(FixedWidths):
    """The rows of a chain whose path has the chance ``CONFIDENCE`` by the drafter itself."""

    def rows(self, draft: Candidate) -> int:
        if draft.source != CHAIN_SOURCE:
            return draft.rows
        chances = draft.sequence.confidence[: draft.rows]
        return next((i for i, chance in enumerate(chances) if chance < CONFIDENCE), draft.rows)


def mode_of(draft: Candidate) -> DraftMode:
    """What a draft of the device is."""
    if not draft.rows:
        return "off"
    return "tree" if draft.source == TREE_SOURCE else "chain"


def fair_widths(wanted: Several[int], total: int) -> list[int]:
    """Max-min fair shares of ``total``: no share exceeds its wish, and small wishes come first."""
    given = [0] * len(wanted)
    left = total
    for rank, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        given[index] = min(wanted[index], left // (len(wanted) - rank))
        left -= given[index]
    return given
