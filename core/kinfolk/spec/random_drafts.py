"""Drafts that are almost never right: what drafted rows cost, for ``kinfolk bench --rows``."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinfolk.model_api import ModelInfo


class RandomDrafts:
    """Proposes as many tokens as it may, anything of the vocabulary, the same in every run."""

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    def propose(self, known: list[int], limit: int) -> list[int]:
        source = random.Random(len(known))
        return source.choices(range(self._vocabulary), k=limit)

    def release(self, known: list[int]) -> None:
        """Nothing is kept."""


def create(info: ModelInfo) -> RandomDrafts:
    """The drafter of ``--drafter random``."""
    return RandomDrafts(info.vocabulary)
