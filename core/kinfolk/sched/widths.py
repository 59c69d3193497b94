"""How many of its proposed rows each sequence verifies, and whether proposing pays at all.

A row costs time and gives a token with some chance. Both are learned: the time of a step from steps
of its size, the chance of a row from the rows that were kept. The widths of a step are those with
the most expected tokens for its time, over all sequences together; a step without drafts is one of
the choices. So drafts get shorter where text is hard to guess and where many sequences share a
step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence as Several
from math import inf
from typing import Final, Protocol

from kinfolk.sched.request import Sequence

PROBE: Final = 64
"""Every so many steps, more rows are verified than pay: what is not tried is not learned."""

LEAST_PROBE: Final = 2
"""Rows of a sequence in such a step, or twice as many as seem to pay if that is more."""

SAMPLES: Final = 2
"""Steps of a size that are timed before its time is trusted, the first of which is not counted: it
may have compiled or captured something."""

SIZES: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Sizes that rows and sequences are rounded up to: steps of nearly one size take the same time."""

CHANCE_RATE: Final = 0.03
"""Weight of a new observation of a sequence's rows; half of them are forgotten in 23 steps."""

TIME_RATE: Final = 0.1
"""Weight of a newly timed step."""

TINY: Final = 1e-6
"""Chances below it are nothing."""

FIRST_CHANCE: Final = 0.8
"""Expected chance of a row whose predecessor is kept, before anything is known."""


class Widths(Protocol):
    """A policy of widths. Sequences are those that decode in a step."""

    def choose(self, sequences: Several[Sequence], most: Several[int], rows: int) -> list[int]:
        """Drafted rows for each sequence, at most ``most`` of it and ``rows`` in all."""
        ...

    def propose(self, sequences: Several[Sequence], most: Several[int]) -> list[bool]:
        """Whether the device should propose what follows this step, for each sequence; the next
        step can verify ``most`` rows of it."""
        ...

    def verified(self, sequence: Sequence, width: int, path: Several[int]) -> None:
        """Of the drafted rows 1 to ``width``, those in ``path`` were kept."""
        ...

    def timed(self, rows: int, sequences: int, seconds: float, *, drafted: bool) -> None:
        """A step without slices took so long; ``drafted``: with the draft before it."""
        ...

    def release(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        ...


class FixedWidths:
    """As many rows as are proposed, shared fairly where there is no room for all."""

    def choose(self, sequences: Several[Sequence], most: Several[int], rows: int) -> list[int]:
        return list(most) if sum(most) <= rows else fair_widths(most, max(0, rows))

    def propose(self, sequences: Several[Sequence], most: Several[int]) -> list[bool]:
        return [each > 0 for each in most]

    def verified(self, sequence: Sequence, width: int, path: Several[int]) -> None:
        """Nothing is learned."""

    def timed(self, rows: int, sequences: int, seconds: float, *, drafted: bool) -> None:
        """Nothing is learned."""

    def release(self, sequence: Sequence) -> None:
        """Nothing is kept."""


class CostWidths:
    """The widths with the most expected tokens for the time of a step, of up to ``proposed`` rows.

    A size whose time is not known yet is tried, so each one costs a few steps.
    """

    def __init__(self, proposed: int) -> None:
        self._usual = [FIRST_CHANCE ** (row + 1) for row in range(proposed)]
        self._chances: dict[str, list[float]] = {}
        self._times: dict[tuple[int, int, bool], tuple[int, float]] = {}
        self._steps = 0

    def choose(self, sequences: Several[Sequence], most: Several[int], rows: int) -> list[int]:
        self._steps += 1
        _, widths = self._best(sequences, most, rows)
        if self._steps % PROBE:
            return widths
        wider = [
            min(limit, max(LEAST_PROBE, 2 * width))
            for limit, width in zip(most, widths, strict=True)
        ]
        return FixedWidths().choose(sequences, wider, rows)

    def propose(self, sequences: Several[Sequence], most: Several[int]) -> list[bool]:
        if (self._steps + 1) % PROBE == 0:  # the next step probes
            return [each > 0 for each in most]
        plain = self._time(len(sequences), len(sequences), drafted=False)
        if plain is None:
            return [False] * len(sequences)
        value, widths = self._best(sequences, most, sum(most))
        if value == inf:
            return [each > 0 for each in most]
        if value * plain <= len(sequences):
            return [False] * len(sequences)
        return [width > 0 for width in widths]

    def verified(self, sequence: Sequence, width: int, path: Several[int]) -> None:
        kept = set(path)
        for chances in (self._of(sequence), self._usual):
            last = chances[width - 1]
            for row in range(width):
                chances[row] += CHANCE_RATE * ((row + 1 in kept) - chances[row])
            # The rows behind were not tried: they change as the last one that was.
            change = chances[width - 1] / max(last, TINY)
            for row in range(width, len(chances)):
                chances[row] = min(1.0, chances[row] * change)

    def timed(self, rows: int, sequences: int, seconds: float, *, drafted: bool) -> None:
        key = (_size(rows), _size(sequences), drafted)
        count, usual = self._times.get(key, (0, seconds))
        # Until a time is trusted, the last one counts.
        rate = 1.0 if count < SAMPLES else TIME_RATE
        self._times[key] = (count + 1, usual + rate * (seconds - usual))

    def release(self, sequence: Sequence) -> None:
        self._chances.pop(sequence.request.id, None)

    def _of(self, sequence: Sequence) -> list[float]:
        return self._chances.setdefault(sequence.request.id, list(self._usual))

    def _time(self, rows: int, sequences: int, *, drafted: bool) -> float | None:
        """The time of a step in seconds, ``None`` if it is not known."""
        count, seconds = self._times.get((_size(rows), _size(sequences), drafted), (0, 0.0))
        return seconds if count >= SAMPLES else None

    def _best(
        self, sequences: Several[Sequence], most: Several[int], rows: int
    ) -> tuple[float, list[int]]:
        """Expected tokens a second, and the widths that give them; infinity to try a size."""
        lanes = len(sequences)
        gains = []
        for lane, (sequence, limit) in enumerate(zip(sequences, most, strict=True)):
            most_likely = 1.0
            for row, chance in enumerate(self._of(sequence)[:limit]):
                most_likely = min(most_likely, chance)  # rows are taken in their order
                gains.append((-most_likely, row, lane))
        gains.sort()
        del gains[max(0, rows) :]
        best, taken, expected, least = 0.0, 0, float(lanes), 0.0
        for count in range(len(gains) + 1):
            if count:
                expected -= gains[count - 1][0]
            if count < len(gains) and _size(lanes + count + 1) == _size(lanes + count):
                continue  # the next row is free
            seconds = self._time(lanes + count, lanes, drafted=True)
            if seconds is None:
                # More rows do not take less time.
                if expected <= best * least:
                    continue
                return inf, _counts(gains[:count], lanes)
            least = max(least, seconds)
            if expected > best * seconds:
                best, taken = expected / seconds, count
        return best, _counts(gains[:taken], lanes)


def fair_widths(wanted: Several[int], total: int) -> list[int]:
    """Max-min fair shares of ``total``: no share exceeds its wish, and small wishes come first."""
    given = [0] * len(wanted)
    left = total
    for rank, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        given[index] = min(wanted[index], left // (len(wanted) - rank))
        left -= given[index]
    return given


def _counts(gains: Several[tuple[float, int, int]], lanes: int) -> list[int]:
    widths = [0] * lanes
    for _, _, lane in gains:
        widths[lane] += 1
    return widths


def _size(count: int) -> int:
    place = bisect_left(SIZES, count)
    return SIZES[place] if place < len(SIZES) else -(-count // SIZES[-1]) * SIZES[-1]
