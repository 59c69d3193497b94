"""What became of the tokens that were drafted for a request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

DraftMode = Literal["off", "chain", "tree"]
"""What is drafted for a request: nothing, one token after another, or several for one place."""


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Counts over the drafting steps of a request, those that verified drafted rows of it.

    mode       what its drafts are, "off" if nothing may draft for it
    steps      drafting steps
    drafted    their drafted rows
    depth      tokens that they could have accepted: of a chain its rows, of a tree no more than its
               drafter proposes one after another
    emitted    tokens that they emitted: the accepted ones, and one more each unless a stop token
               came before
    reached    [depth of the deepest draft] steps that accepted all before a place and had room for
               it, and
    kept       those of them that accepted the token there
    failures   drafts that failed
    given_up   whether so many have failed, of whatever requests, that no more were asked for
    """

    mode: DraftMode = "off"
    steps: int = 0
    drafted: int = 0
    depth: int = 0
    emitted: int = 0
    reached: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    failures: int = 0
    given_up: bool = False

    @property
    def accepted(self) -> int:
        """Drafted tokens that were emitted."""
        return sum(self.kept)

    @property
    def accept_length(self) -> float:
        """Tokens that a drafting step emits on average, 0 without such steps (tau in papers)."""
        return self.emitted / self.steps if self.steps else 0.0

    @property
    def accept_rate(self) -> float:
        """The accepted part of what could have been: accepted / (steps x depth). A tree has more
        rows than it can accept, so this divides by depths, and chains and trees compare."""
        return self.accepted / self.depth if self.depth else 0.0

    @property
    def per_position(self) -> tuple[float, ...]:
        """For each place in a draft, the part of all drafting steps that accepted its token."""
        return tuple(kept / self.steps for kept in self.kept)

    @classmethod
    def total(cls, counts: Iterable[DraftCounts]) -> DraftCounts:
        """The sums of several requests. They have one mode, or "off"."""
        several = list(counts)
        return cls(
            next((one.mode for one in several if one.mode != "off"), "off"),
            sum(one.steps for one in several),
            sum(one.drafted for one in several),
            sum(one.depth for one in several),
            sum(one.emitted for one in several),
            _sums(one.reached for one in several),
            _sums(one.kept for one in several),
            sum(one.failures for one in several),
            any(one.given_up for one in several),
        )


NO_DRAFTS: Final = DraftCounts()
"""The counts of a request for which nothing was drafted."""


@dataclass(slots=True)
class DraftTally:
    """Counts of a request that still runs. A step costs one entry, however deep it drafts.

    ``runs``: drafting steps by their depth and the tokens that they accepted; ``trees``: whether
    one of them verified a tree.
    """

    drafted: int = 0
    emitted: int = 0
    failures: int = 0
    trees: bool = False
    runs: Counter[tuple[int, int]] = field(default_factory=Counter)

    def add(self, drafted: int, depth: int, accepted: int, emitted: int) -> None:
        """Count a drafting step."""
        self.drafted += drafted
        self.emitted += emitted
        self.runs[depth, accepted] += 1

    @property
    def accept_length(self) -> float:
        """Tokens that a drafting step has emitted on average so far, 0 without such steps."""
        steps = self.runs.total()
        return self.emitted / steps if steps else 0.0

    def counts(self, mode: DraftMode, *, given_up: bool = False) -> DraftCounts:
        """The counts so far."""
        runs = self.runs.items()
        places = range(max((depth for depth, _ in self.runs), default=0))
        return DraftCounts(
            mode,
            self.runs.total(),
            self.drafted,
            sum(depth * steps for (depth, _), steps in runs),
            self.emitted,
            tuple(sum(n for (d, a), n in runs if a >= place and d > place) for place in places),
            tuple(sum(n for (_, a), n in runs if a > place) for place in places),
            self.failures,
            given_up,
        )


def _sums(several: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """Sums by place; a shorter one has zeros at its end."""
    totals: list[int] = []
    for counts in several:
        totals += [0] * (len(counts) - len(totals))
        for place, count in enumerate(counts):
            totals[place] += count
    return tuple(totals)
