"""Accepted ranges of metadata numbers, and their wording in error messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MAX_INT32: Final = 2**31 - 1
"""Default bound of the magnitude of an integer: larger than any size, count or position."""


@dataclass(frozen=True, slots=True)
class Range:
    """Finite numbers within bounds: ``minimum`` and ``maximum`` inclusive, ``above`` and ``below``
    exclusive; ``None`` = unbounded."""

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None

    @classmethod
    def of_integers(cls, minimum: int | None, maximum: int | None) -> Range:
        """A range of integers; a missing end is -``MAX_INT32`` or ``MAX_INT32``."""
        return cls(
            -MAX_INT32 if minimum is None else minimum, MAX_INT32 if maximum is None else maximum
        )

    def __contains__(self, number: float) -> bool:
        return (
            float("-inf") < number < float("inf")
            and (self.minimum is None or number >= self.minimum)
            and (self.maximum is None or number <= self.maximum)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    def wanted(self, number: float) -> str:
        """The range in words, for an error about ``number``: ``1 to 1024``, ``at least 1``, ``above
        0 and at most 1``, ``a finite number``. Default ends are named only if ``number`` is beyond
        them."""
        usual = abs(number) <= MAX_INT32
        minimum = None if usual and self.minimum == -MAX_INT32 else self.minimum
        maximum = None if usual and self.maximum == MAX_INT32 else self.maximum
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
    """A number for messages; a float with the 7 digits of float32."""
    return str(number) if isinstance(number, int) else f"{number:.7g}"
