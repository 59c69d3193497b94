"""A request's history for sampling: its parameters and, for penalties, counts of its tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from copy import copy
from typing import Self

from kinfolk.sched.plan import Item, ItemKind
from kinfolk.sched.request import Request


class History:
    """Token counts of one request; kept only if its sampling has penalties.

    ``prompt`` holds the ids of the prompt, ``output`` counts the emitted tokens.
    """

    def __init__(self, request: Request) -> None:
        self.sampling = request.sampling
        self._penalised = request.sampling.has_penalties
        self.prompt = frozenset(request.prompt) if self._penalised else frozenset()
        self.output: Counter[int] = Counter()

    def copy(self) -> Self:
        """The same counts for a copy of the sequence, in a slot of its own."""
        copied = copy(self)
        copied.output = Counter(self.output)
        return copied

    def extend(self, tokens: Iterable[int]) -> None:
        """Count emitted tokens."""
        if self._penalised:
            self.output.update(tokens)


def sampled_positions(item: Item) -> list[int]:
    """Positions of the tokens that an item's sampled rows choose: of all rows of a drafted item,
    else of the last one. Those of a proposed tree are known to the device only; here they are those
    of a chain."""
    if item.kind is not ItemKind.VERIFY:
        return [item.start + len(item.tokens)]
    if item.parents is None:
        return list(range(item.start + 1, item.start + 1 + item.rows))
    positions: list[int] = []
    for parent in item.parents:
        positions.append(item.start + 1 if parent < 0 else positions[parent] + 1)
    return positions
