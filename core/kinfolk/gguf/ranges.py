"""Ranges of numbers in metadata: which values of a key can be used, and how a complaint says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST: Final = 2**31 - 1
"""Integers of a file lie between minus this and this unless a narrower range is stated: no size,
count or position of a model does not."""


@dataclass(frozen=True, slots=True)
class Range:
    """Finite numbers of at least ``minimum`` or ``above`` a bound, at most ``maximum`` or ``below``
    one; a bound that is ``None`` is none."""

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None

    @classmethod
    def of_integers(cls, minimum: int | None, maximum: int | None) -> Range:
        """A range of integers, which has two ends."""
        return cls(-MOST if minimum is None else minimum, MOST if maximum is None else maximum)

    def __contains__(self, number: float) -> bool:
        return (
            float("-inf") < number < float("inf")
            and (self.minimum is None or number >= self.minimum)
            and (self.maximum is None or number <= self.maximum)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    def wanted(self, found: float) -> str:
        """``1 to 1024``, ``at least 1``, ``above 0 and at most 1``, ``a finite number``: what was
        expected in place of ``found``. The ends that all integers have are shown to these alone."""
        usual = abs(found) <= MOST
        minimum = None if usual and self.minimum == -MOST else self.minimum
        maximum = None if usual and self.maximum == MOST else self.maximum
        if minimum is not None and maximum is not None:
            return f"{shown(minimum)} to {shown(maximum)}"
        bounds = (
            ("at least", minimum),
            ("above", self.above),
            ("at most", maximum),
            ("below", self.below),
        )
        stated = [f"{words} {shown(bound)}" for words, bound in bounds if bound is not None]
        return " and ".join(stated) or "a finite number"


def shown(number: float) -> str:
    """A number of a file for messages: a float of it in the digits that float32 has."""
    return str(number) if isinstance(number, int) else f"{number:.7g}"
