"""Speeds as they were seen: of each request now, and of all over the last minutes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from kinfolk.sched.view import SequenceView

BIN_SECONDS: Final = 5
BINS: Final = 60

_GAP_SECONDS: Final = 15.0
"""Nothing is known of a longer time in which nobody looked."""

_NOW_SECONDS: Final = 2.0
"""A speed of now is that of so long a time."""


@dataclass(slots=True)
class _Bin:
    """Tokens that were generated and tokens of prompts that were computed, in ``seconds``."""

    number: int
    seconds: float = 0.0
    generated: float = 0.0
    prompt: float = 0.0


class SpeedHistory:
    """Totals, looked at from time to time, as tokens a second in bins of :data:`BIN_SECONDS`.

    Times are in seconds since any fixed moment, and totals never fall.
    """

    def __init__(self) -> None:
        self._bins: deque[_Bin] = deque(maxlen=BINS)
        self._last: tuple[float, int, int] | None = None

    def add(self, now: float, generated: int, prompt: int) -> None:
        """Take the totals of this moment. What was done since the last one is spread evenly."""
        last, self._last = self._last, (now, generated, prompt)
        if last is None or not 0 < now - last[0] <= _GAP_SECONDS:
            return
        span, at = now - last[0], last[0]
        while at < now:
            number = int(at // BIN_SECONDS)
            stop = min(now, (number + 1) * BIN_SECONDS)
            here = self._bin(number)
            here.seconds += stop - at
            here.generated += (generated - last[1]) * (stop - at) / span
            here.prompt += (prompt - last[2]) * (stop - at) / span
            at = stop

    def speeds(self, now: float) -> dict[str, Any]:
        """Tokens a second of the last :data:`BINS` bins that are over, the oldest first; ``None``
        where nobody looked for half of a bin."""
        known = {each.number: each for each in self._bins if each.seconds >= BIN_SECONDS / 2}
        last = int(now // BIN_SECONDS) - 1
        seen = [known.get(number) for number in range(last - BINS + 1, last + 1)]
        return {
            "bin_seconds": BIN_SECONDS,
            "generated": [None if b is None else round(b.generated / b.seconds, 1) for b in seen],
            "prompt": [None if b is None else round(b.prompt / b.seconds, 1) for b in seen],
        }

    def _bin(self, number: int) -> _Bin:
        if not self._bins or self._bins[-1].number != number:
            self._bins.append(_Bin(number))
        return self._bins[-1]


class RequestSpeeds:
    """Positions and tokens of each request, of the last seconds."""

    def __init__(self) -> None:
        self._seen: dict[str, deque[tuple[float, int, int]]] = {}

    def add(self, now: float, requests: Iterable[SequenceView]) -> None:
        """Take what each request has done; those that are not among them are forgotten."""
        seen = {}
        for each in requests:
            samples = self._seen.get(each.request_id, deque())
            samples.append((now, each.position, each.emitted))
            while len(samples) > 2 and samples[1][0] <= now - _NOW_SECONDS:
                samples.popleft()
            seen[each.request_id] = samples
        self._seen = seen

    def of(self, request: SequenceView) -> float | None:
        """Tokens a second: those emitted, or while none was, positions of its prompt. ``None``
        when it was seen only once."""
        samples = self._seen.get(request.request_id)
        if not samples or len(samples) < 2:
            return None
        (began, position, emitted), (now, last_position, last_emitted) = samples[0], samples[-1]
        done = last_emitted - emitted or (0 if emitted else last_position - position)
        return round(done / (now - began), 1) if now > began else None
