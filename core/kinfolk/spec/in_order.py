"""Several drafters of the host: the first that proposes something is followed."""

from __future__ import annotations

from dataclasses import dataclass

from kinfolk.draft_api import Drafter


@dataclass(frozen=True, slots=True)
class DraftersInOrder:
    """The drafter of the host for ``--draft NAME,NAME``."""

    drafters: tuple[Drafter, ...]

    def propose(self, known: list[int], limit: int) -> list[int]:
        proposed = (drafter.propose(known, limit) for drafter in self.drafters)
        return next((draft for draft in proposed if draft), [])

    def release(self, known: list[int]) -> None:
        for drafter in self.drafters:
            drafter.release(known)
