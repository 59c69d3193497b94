"""Back-off: what has failed is tried again after a while, and after each failure later."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

FIRST_WAIT: Final = 1.0
LONGEST_WAIT: Final = 300.0
"""Seconds."""


class BackOff:
    """Counts failures in a row. After the first one nothing is tried for ``FIRST_WAIT`` seconds,
    after each further one for twice as long, at most ``LONGEST_WAIT``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._until = 0.0

    @property
    def waiting(self) -> bool:
        """Whether nothing is to be tried now."""
        return self._clock() < self._until

    def failed(self) -> None:
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(self._failures, 32))
        self._failures += 1
        self._until = self._clock() + wait

    def succeeded(self) -> None:
        self._failures, self._until = 0, 0.0
