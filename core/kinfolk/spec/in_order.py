"""Several drafters of the host: the first that proposes something is followed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kinfolk.draft_api import Drafter


@dataclass(frozen=True, slots=True)
class DraftersInOrder:
    """The drafter of the host for ``--draft NAME,NAME``.

    A drafter that fails hides none behind it: the first error is raised when all have been asked
    and none has proposed anything.
    """

    drafters: tuple[Drafter, ...]

    def propose(self, known: list[int], limit: int) -> list[int]:
        return self._first(lambda drafter: drafter.propose(known, limit)) or []

    def release(self, known: list[int]) -> None:
        self._first(lambda drafter: drafter.release(known))

    def _first(self, ask: Callable[[Drafter], list[int] | None]) -> list[int] | None:
        """The first answer that is not empty."""
        failure: Exception | None = None
        for drafter in self.drafters:
            try:
                answer = ask(drafter)
            except Exception as error:
                failure = failure or error
                continue
            if answer:
                return answer
        if failure is not None:
            raise failure
        return None
