"""Widths by cost: what a step verifies, and whether proposing pays at all.

A row costs time and gives a token with some chance. Both are learned: the time of a step from steps
of its size, the chance of a row from the rows that were kept. The widths of a step are those with
the most expected tokens for its time, over all sequences together; a step without drafts is one of
the choices. So drafts get shorter where text is hard to guess and where many sequences share a
step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Several
from dataclasses import dataclass
from math import inf
from typing import Final

from kinfolk.sched.draft_counts import DraftMode
from kinfolk.sched.request import Sequence
from kinfolk.sched.widths import (
    CHAIN_SOURCE,
    TREE_SOURCE,
    Candidate,
    FixedWidths,
    Proposable,
    mode_of,
)

PROBE: Final = 64
"""Every so many steps, more rows are verified than pay: what is not tried is not learned."""

LEAST_PROBE: Final = 2
"""Rows of a sequence in such a step, or twice as many as seem to pay if that is more."""

SAMPLES: Final = 2
"""Steps of a size that are timed before its time is trusted; the shortest of them counts, as the
first may have compiled something."""

SIZES: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Sizes that rows and sequences are rounded up to: steps of nearly one size take the same time."""

CHANCE_RATE: Final = 0.03
"""Weight of a new observation of rows; half of them are forgotten in 23 steps. The first ones of a
source weigh more: they replace a guess."""

TIME_RATE: Final = 0.1
"""Weight of a newly timed step."""

SPIKE: Final = 2.0
"""A step that takes more than so many times what is usual counts as that many: something else held
it up. A size that seems slow is not used, so such an error would stay."""

ASKED_AGAIN: Final = SAMPLES + 2
"""Steps without drafts until the policy asks to be asked again, if their time was not known: the
last two are under way by then."""

UNEVEN: Final = 1.05
"""What drafts of several sequences must give, times what steps without drafts do. Sequences that
began together end at different times with drafts, so the last ones have steps of few rows."""

TINY: Final = 1e-6
"""Chances below it are nothing."""

FIRST_CHANCE: Final = 0.8
"""Expected chance of a row whose predecessor is kept, before anything is known."""

RISE: Final = 0.5
"""A size between two timed ones is expected to take at least so much of what a straight line
between them rises to. A whole line would hide sizes that cost less than it, none at all would try
every size of a step that has grown slow."""

FIRST_WEIGHT: Final = 4
"""Observations that the guess before the first one counts for."""


class CostWidths:
    """The widths with the most expected tokens for the time of a step.

    A size whose time is not known yet is tried, for a few steps, if it could be the best one.
    """

    def __init__(self) -> None:
        self._usual: dict[int, _Chances] = {}
        self._of_sequence: dict[tuple[str, int], _Chances] = {}
        self._times: dict[tuple[int, int, bool, bool], tuple[int, float]] = {}
        self._steps = 0
        self._ask_at: int | None = None

    def choose(self, drafts: Several[Candidate], rows: int, *, drafted: bool) -> list[int]:
        self._steps += 1
        probes = self._steps % PROBE == 0
        # A probe tries more rows than pay, so it tries no size beyond that.
        bar = inf if probes else 0.0
        _, widths = self._best(drafts, rows, drafted=drafted, bar=bar)
        if not probes:
            return widths
        wider = [
            Candidate(draft.sequence, min(draft.rows, max(LEAST_PROBE, 2 * width)))
            for draft, width in zip(drafts, widths, strict=True)
        ]
        return FixedWidths().choose(wider, rows, drafted=drafted)

    def expected(self, draft: Candidate) -> float:
        return sum(self._chances(draft).of_rows[: draft.rows])

    def pays(self, drafts: Several[Candidate]) -> bool:
        _, widths = self._best(drafts, sum(draft.rows for draft in drafts), drafted=False)
        return any(widths)

    def propose(self, sequences: Several[Proposable], rows: int) -> list[DraftMode]:
        self._ask_at = None
        lanes = len(sequences)
        chains = [each.candidate(tree=False) for each in sequences]
        # The rows of a step are few where sequences share them, and those of chains come first.
        trees = chains if lanes > 1 else [each.candidate(tree=True) for each in sequences]
        if (self._steps + 1) % PROBE == 0:  # the next step probes, chains and trees in turn
            every_other = (self._steps + 1) // PROBE % 2
            return [mode_of(draft) for draft in (chains if every_other else trees)]
        plain = self._time(lanes, lanes, drafted=False, tree=False)
        if plain is None:
            self._ask_at = self._steps + ASKED_AGAIN
            return ["off"] * lanes
        most = lanes / plain * (UNEVEN if lanes > 1 else 1.0)
        chosen, widths = chains, [0] * lanes
        for drafts in (chains,) if trees == chains else (chains, trees):
            value, found = self._best(drafts, rows, drafted=True, bar=most)
            if value == inf:
                return [mode_of(draft) for draft in drafts]
            if value > most:
                most, chosen, widths = value, drafts, found
        return [
            mode_of(draft) if width else "off" for draft, width in zip(chosen, widths, strict=True)
        ]

    def passed(self) -> bool:
        # What the second step from now probes is proposed behind the next one.
        if (self._steps + 2) % PROBE == 0:
            return False
        if self._ask_at is not None and self._steps >= self._ask_at:
            return False
        self._steps += 1
        return True

    def verified(self, draft: Candidate, path: Several[int]) -> None:
        kept = set(path)
        usual = self._usual_of(draft)
        key = (draft.sequence.request.id, draft.source)
        own = self._of_sequence.get(key)
        if own is None:
            # Those of a sequence begin as the usual ones.
            own = self._of_sequence[key] = _Chances(list(usual.of_rows), usual.count)
        own.reach(draft.rows)
        for chances in (own, usual):
            chances.learn(draft.rows, kept)

    def timed(
        self, rows: int, sequences: int, seconds: float, *, drafted: bool, tree: bool
    ) -> None:
        key = (_size(rows), _size(sequences), drafted, tree)
        count, usual = self._times.get(key, (0, seconds))
        if count < SAMPLES:
            usual = min(usual, seconds)
        else:
            usual += TIME_RATE * (min(seconds, SPIKE * usual) - usual)
        self._times[key] = (count + 1, usual)

    def release(self, sequence: Sequence) -> None:
        gone = [key for key in self._of_sequence if key[0] == sequence.request.id]
        for key in gone:
            del self._of_sequence[key]

    def _usual_of(self, draft: Candidate) -> _Chances:
        usual = self._usual.setdefault(draft.source, _Chances([]))
        if not usual.count and draft.source == TREE_SOURCE and CHAIN_SOURCE in self._usual:
            # A tree that was never verified is expected to keep what chains do.
            usual.of_rows = list(self._usual[CHAIN_SOURCE].of_rows)
        usual.reach(draft.rows)
        return usual

    def _chances(self, draft: Candidate) -> _Chances:
        """Those of the sequence, or the usual ones if nothing of it was verified yet."""
        own = self._of_sequence.get((draft.sequence.request.id, draft.source))
        if own is None:
            return self._usual_of(draft)
        own.reach(draft.rows)
        return own

    def _time(self, rows: int, sequences: int, *, drafted: bool, tree: bool) -> float | None:
        """The time of a step in seconds, ``None`` if it is not known."""
        key = (_size(rows), _size(sequences), drafted, tree)
        count, seconds = self._times.get(key, (0, 0.0))
        return seconds if count >= SAMPLES else None

    def _best(
        self, drafts: Several[Candidate], rows: int, *, drafted: bool, bar: float = 0.0
    ) -> tuple[float, list[int]]:
        """Expected tokens a second, and the widths that give them; infinity to try the size that
        may be the best, and more than ``bar``, by the least time that it is expected to take."""
        lanes = len(drafts)
        gains = []
        for lane, draft in enumerate(drafts):
            most_likely = 1.0
            for row, chance in enumerate(self._chances(draft).of_rows[: draft.rows]):
                most_likely = min(most_likely, chance)  # rows are taken in their order
                gains.append((-most_likely, row, lane))
        gains.sort()
        del gains[max(0, rows) :]
        trees = {lane for lane, draft in enumerate(drafts) if draft.source == TREE_SOURCE}
        best, taken, expected, tree = 0.0, 0, float(lanes), False
        hope, promising = 0.0, 0
        least, least_rows = self._time(lanes, lanes, drafted=False, tree=False) or 0.0, lanes
        for count in range(len(gains) + 1):
            if count:
                expected -= gains[count - 1][0]
                tree = tree or gains[count - 1][2] in trees
            if count < len(gains) and _size(lanes + count + 1) == _size(lanes + count):
                continue  # the next row is free
            # More rows do not take less time, nor does a tree of as many.
            seconds = self._time(lanes + count, lanes, drafted=drafted, tree=False)
            if seconds is not None:
                least, least_rows = max(least, seconds), lanes + count
            if tree:
                seconds = self._time(lanes + count, lanes, drafted=drafted, tree=True)
            if seconds is None:
                floor = self._floor(lanes + count, lanes, (least, least_rows), drafted=drafted)
                most = expected / floor if floor else inf
                if most > hope:
                    hope, promising = most, count
                continue
            least, least_rows = max(least, seconds), lanes + count
            if expected > best * seconds:
                best, taken = expected / seconds, count
        if hope > max(best, bar):
            return inf, _counts(gains[:promising], lanes)
        return best, _counts(gains[:taken], lanes)

    def _floor(
        self, rows: int, sequences: int, below: tuple[float, int], *, drafted: bool
    ) -> float:
        """The least seconds that a step of a size without a time is expected to take. ``below``:
        the time and the rows of the largest timed size below it."""
        least, least_rows = below
        for size in SIZES:
            if size <= _size(rows):
                continue
            above = self._time(size, sequences, drafted=drafted, tree=False)
            if above is not None:
                share = (rows - least_rows) / (size - least_rows)
                return least + RISE * share * max(0.0, above - least)
        return least


@dataclass(slots=True)
class _Chances:
    """``of_rows``: the chance of each row of a draft to be kept, after ``count`` drafts."""

    of_rows: list[float]
    count: int = 0

    def reach(self, rows: int) -> None:
        """Have so many rows at least; new ones as if each were kept as often as the first guess."""
        while len(self.of_rows) < rows:
            before = self.of_rows[-1] if self.of_rows else 1.0
            self.of_rows.append(FIRST_CHANCE * before)

    def learn(self, rows: int, kept: set[int]) -> None:
        chances = self.of_rows
        self.count += 1
        rate = max(CHANCE_RATE, 1 / (self.count + FIRST_WEIGHT))
        last = chances[rows - 1]
        for row in range(rows):
            chances[row] += rate * ((row + 1 in kept) - chances[row])
        # The rows behind were not tried: they change as the last one that was.
        change = chances[rows - 1] / max(last, TINY)
        for row in range(rows, len(chances)):
            chances[row] = min(1.0, chances[row] * change)


def _counts(gains: Several[tuple[float, int, int]], lanes: int) -> list[int]:
    widths = [0] * lanes
    for _, _, lane in gains:
        widths[lane] += 1
    return widths


def _size(count: int) -> int:
    place = bisect_left(SIZES, count)
    return SIZES[place] if place < len(SIZES) else -(-count // SIZES[-1]) * SIZES[-1]
