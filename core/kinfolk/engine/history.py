"""A request's history for sampling: its parameters and, for penalties, counts of its tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kinfolk.sched.plan import Item, ItemKind
from kinfolk.sched.request import Request
from kinfolk.spec.sampling import RowContext


class History:
    """Token counts of one request; kept only if its sampling has penalties."""

    def __init__(self, request: Request) -> None:
        self.sampling = request.sampling
        self._penalised = request.sampling.has_penalties
        self._prompt = frozenset(request.prompt) if self._penalised else frozenset()
        self._output: Counter[int] = Counter()

    def extend(self, tokens: Iterable[int]) -> None:
        """Count emitted tokens."""
        if self._penalised:
            self._output.update(tokens)

    def rows(self, item: Item) -> list[RowContext]:
        """The contexts of an item's sampled rows: all of a drafted item, else the last one."""
        last = item.start + len(item.tokens)
        if item.kind is not ItemKind.VERIFY:
            return [RowContext(self.sampling, last, self._prompt, self._output)]
        parents = item.parents or tuple(range(-1, len(item.tokens) - 1))
        rows: list[RowContext] = []
        for row, parent in enumerate(parents):
            if parent < 0:
                rows.append(RowContext(self.sampling, item.start + 1, self._prompt, self._output))
                continue
            before = rows[parent]
            output: Counter[int] = Counter(before.output if self._penalised else ())
            if self._penalised:
                output[item.tokens[row]] += 1
            rows.append(RowContext(self.sampling, before.position + 1, self._prompt, output))
        return rows
