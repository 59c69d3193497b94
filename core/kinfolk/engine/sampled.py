"""The items of a step that choose tokens, and what sampling needs of each one's request.

That is made of one request at a time, before anything of the step depends on it: a request for
which it cannot be made ends alone. Its rows are there all the same, as the places of others depend
on them; they choose what is likeliest, and nobody hears of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from kinfolk.engine.failures import explain
from kinfolk.engine.history import History
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.sched.request import Sampling
from kinfolk.spec.sampling import (
    PARAMETER_ROW,
    Records,
    RowContext,
    entries_of,
    write_parameters,
)

log = logging.getLogger(__name__)

_PLAIN = Sampling()


class SampledItems:
    """The ``items`` of a step that are sampled, in order. ``errors`` maps the number of a failed
    one to the message for its client."""

    def __init__(self, items: Sequence[Item], histories: Mapping[str, History]) -> None:
        self.items = [item for item in items if item.kind is ItemKind.VERIFY or item.sample]
        self.errors: dict[int, str] = {}
        self._histories = [histories[item.request_id] for item in self.items]
        self._rows: list[list[RowContext]] = []
        self._parameters: Records | None = None

    @property
    def samplings(self) -> list[Sampling]:
        return [history.sampling for history in self._histories]

    def parameters(self) -> Records:
        """``PARAMETER_ROW`` of all rows."""
        if self._parameters is None:
            counts = [_rows_of(item) for item in self.items]
            self._parameters, first = np.empty(sum(counts), PARAMETER_ROW), 0
            for lane, count in enumerate(counts):
                self._rows.append(self._make(lane, self._parameters[first : first + count]))
                first += count
        return self._parameters

    def entries(self) -> Records:
        """Changes of logits, see ``entries_of``."""
        self.parameters()
        made, first = [], 0
        for lane, rows in enumerate(self._rows):
            try:
                entries = entries_of(rows)
            except Exception as error:
                self.fail(lane, error)
                entries = entries_of(())
            entries["row"] += first
            made.append(entries)
            first += len(rows)
        return np.concatenate(made) if len(made) > 1 else made[0]

    def lanes(self) -> Iterator[tuple[int, Item, list[RowContext]]]:
        """Each lane with its number and its rows."""
        self.parameters()
        return zip(range(len(self.items)), self.items, self._rows, strict=True)

    def fail(self, lane: int, error: Exception) -> None:
        """End the request of a lane. Only its first error is logged and told; called in an
        ``except`` block."""
        if lane not in self.errors:
            name = self.items[lane].request_id
            log.exception("request %r ends: a step cannot be prepared for it", name)
            self.errors[lane] = explain(error)

    def _make(self, lane: int, parameters: Records) -> list[RowContext]:
        """The rows of a lane, and their parameters."""
        try:
            rows = self._histories[lane].rows(self.items[lane])
            write_parameters(parameters, rows)
        except Exception as error:
            self.fail(lane, error)
            rows = [RowContext(_PLAIN, 0)] * len(parameters)
            write_parameters(parameters, rows)
        return rows


def _rows_of(item: Item) -> int:
    """Rows of an item whose logits are wanted."""
    return len(item.tokens) if item.kind is ItemKind.VERIFY else 1
