"""A scheduled batch: the items of a plan that run together, and their sampling parameters.

Parameters are built one request at a time, before the step needs them, so an error ends its own
request only. The rows of that request still run, as the places of other rows depend on them; their
tokens are chosen greedily and dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import torch

from kinfolk.engine.failures import explain
from kinfolk.engine.history import History
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.sched.request import Sampling
from kinfolk.spec.sampling import (
    PARAMETER_ROW,
    Records,
    RowContext,
    SamplingKind,
    entries_of,
    kind_of,
    write_parameters,
)

log = logging.getLogger(__name__)

_GREEDY = Sampling()


class ScheduledBatch:
    """``items`` in order, and ``sampled``, those of them that choose tokens.

    ``device_tokens`` int64 [R]: the tokens of all rows on the device, if the host does not know
    them yet. ``errors`` maps the number of a failed sampled item to the message for its client.
    """

    def __init__(
        self,
        items: Sequence[Item],
        histories: Mapping[str, History],
        device_tokens: torch.Tensor | None = None,
    ) -> None:
        self.items = items
        self.device_tokens = device_tokens
        self.sampled = [i for i in items if i.kind is ItemKind.VERIFY or i.sample]
        self.has_drafts = any(item.kind is ItemKind.VERIFY for item in items)
        self.errors: dict[int, str] = {}
        self._histories = [histories[item.request_id] for item in self.sampled]
        self.samplings = [history.sampling for history in self._histories]
        self.sampling_kind: SamplingKind = kind_of(self.samplings)

    @cached_property
    def _rows(self) -> tuple[Records, list[list[RowContext]]]:
        """Parameters of all sampled rows, and the rows of each sampled item."""
        counts = [sampled_rows(item) for item in self.sampled]
        parameters, first = np.empty(sum(counts), PARAMETER_ROW), 0
        rows: list[list[RowContext]] = []
        for number, count in enumerate(counts):
            rows.append(self._make(number, parameters[first : first + count]))
            first += count
        return parameters, rows

    def parameters(self) -> Records:
        """``PARAMETER_ROW`` of all sampled rows."""
        return self._rows[0]

    def entries(self) -> Records:
        """Changes of logits, as ``entries_of`` returns them."""
        entries, first = [], 0
        for number, rows in enumerate(self._rows[1]):
            try:
                own = entries_of(rows)
            except Exception as error:
                self.fail(number, error)
                own = entries_of(())
            own["row"] += first
            entries.append(own)
            first += len(rows)
        return np.concatenate(entries) if len(entries) > 1 else entries[0]

    def rows(self) -> Iterator[tuple[int, Item, list[RowContext]]]:
        """Each sampled item with its number and its rows."""
        return zip(range(len(self.sampled)), self.sampled, self._rows[1], strict=True)

    def wanted_logprobs(self) -> Iterator[tuple[int, slice]]:
        """The numbers of sampled items that ask for log-probabilities, and their rows of logits."""
        first = 0
        for number, (item, sampling) in enumerate(zip(self.sampled, self.samplings, strict=True)):
            stop = first + sampled_rows(item)
            if sampling.logprobs is not None:
                yield number, slice(first, stop)
            first = stop

    def fail(self, number: int, error: Exception) -> None:
        """End the request of a sampled item. Only its first error is logged and sent to the client.
        Call it in an ``except`` block."""
        if number not in self.errors:
            name = self.sampled[number].request_id
            log.exception("request %r ends: a step cannot be prepared for it", name)
            self.errors[number] = explain(error)

    def _make(self, number: int, parameters: Records) -> list[RowContext]:
        """The rows of a sampled item; its parameters are written to ``parameters``."""
        try:
            rows = self._histories[number].rows(self.sampled[number])
            write_parameters(parameters, rows)
        except Exception as error:
            self.fail(number, error)
            rows = [RowContext(_GREEDY, 0)] * len(parameters)
            write_parameters(parameters, rows)
        return rows


def sampled_rows(item: Item) -> int:
    """The number of rows of a sampled item that choose a token."""
    return len(item.tokens) if item.kind is ItemKind.VERIFY else 1
