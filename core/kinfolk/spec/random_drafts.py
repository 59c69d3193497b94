"""Random drafts, almost always rejected: ``kinfolk bench`` measures with them what rows cost, with
``--rows`` and ``--widths``."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinfolk.model_api import ModelInfo


class RandomDrafts:
    """Proposes ``limit`` random tokens of the vocabulary, the same in every run."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    def propose(self, known: list[int], limit: int) -> list[int]:
        source = random.Random(len(known))
        return source.choices(range(self._vocabulary), k=limit)

    def release(self, known: list[int]) -> None:
        """Keeps no state, so releases none."""


def create(info: ModelInfo) -> RandomDrafts:
    """The drafter of ``--draft random``."""
    return RandomDrafts(info.vocabulary)
