"""An answer that has ended, in numbers."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final, Self

from kinfolk.engine.answer import Ended

MOST_FINISHED: Final = 20
"""Finished answers that are remembered."""


@dataclass(frozen=True, slots=True)
class FinishedAnswer:
    """``ended`` is a Unix time; ``end`` has tokens, seconds, and what was reused."""

    ended: float
    end: Ended

    @classmethod
    def of(cls, end: Ended) -> Self:
        return cls(round(time.time(), 1), end)

    def to_json(self) -> dict[str, Any]:
        """Tokens, the time to the first of them, which has that of waiting in it, and the speed
        behind it."""
        end, usage = self.end, self.end.usage
        return {
            "ended": self.ended,
            "reason": end.reason.value,
            "prompt": usage.prompt,
            "reused": usage.reused,
            "reused_from": usage.reused_from,
            "generated": end.tokens,
            "first_token_seconds": round(end.timings.prompt, 3),
            "tokens_per_second": _speed(end.tokens - 1, end.timings.decode),
            "accept_length": round(usage.drafts.accept_length, 2) or None,
            "exact": usage.exact,
        }


def _speed(tokens: int, seconds: float) -> float | None:
    return round(tokens / seconds, 1) if seconds > 0 and tokens > 0 else None
