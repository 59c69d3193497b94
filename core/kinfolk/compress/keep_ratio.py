"""How much of a prompt is kept: a ratio that may depend on its length."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KeepCurve:
    """Ratios by length: ``points`` (tokens, ratio) in increasing order of tokens.

    Between two points the ratio is on the line between them, outside it is that of the nearest.
    Raises :class:`ValueError` for no points, tokens that do not increase, or a ratio that is not
    above 0 and at most 1.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("must name at least one point TOKENS:RATIO")
        tokens = [point[0] for point in self.points]
        if tokens[0] < 0 or any(b <= a for a, b in itertools.pairwise(tokens)):
            raise ValueError(f"the tokens of its points must increase, got {tokens}")
        for _, ratio in self.points:
            if not 0 < ratio <= 1:
                raise ValueError(f"a ratio must be above 0 and at most 1, got {ratio}")

    @classmethod
    def flat(cls, ratio: float) -> KeepCurve:
        """The same ratio for every length."""
        return cls(((0, ratio),))

    @classmethod
    def parse(cls, parts: Iterable[str]) -> KeepCurve:
        """The curve of ``TOKENS:RATIO`` texts."""
        points = []
        for part in parts:
            tokens, colon, ratio = part.partition(":")
            try:
                points.append((int(tokens), float(ratio)))
            except ValueError:
                colon = ""
            if not colon:
                raise ValueError(f"{part!r} is not of the form TOKENS:RATIO, as in 32000:0.1")
        return cls(tuple(points))

    def ratio(self, tokens: int) -> float:
        """The part of a prompt of ``tokens`` tokens that is kept."""
        after = bisect_right(self.points, tokens, key=lambda point: point[0])
        if after == 0:
            return self.points[0][1]
        if after == len(self.points):
            return self.points[-1][1]
        (low, first), (high, last) = self.points[after - 1], self.points[after]
        return first + (last - first) * (tokens - low) / (high - low)
