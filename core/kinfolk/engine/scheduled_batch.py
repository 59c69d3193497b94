"""A scheduled batch: the items of a plan that run together, and their sampling parameters.

Parameters are built one request at a time, before the step needs them, so an error ends its own
request only. The rows of that request still run, as the places of other rows depend on them; their
tokens are chosen greedily and dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import accumulate, chain

import numpy as np
import torch

from kinfolk.engine.buckets import Bucket
from kinfolk.engine.draft_buffers import Lane
from kinfolk.engine.failures import explain
from kinfolk.engine.history import History, sampled_positions
from kinfolk.engine.input_buffers import InputBuffers
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.sched.request import Sampling
from kinfolk.spec.penalties import PenaltyState
from kinfolk.spec.sampling import (
    PARAMETER_ROW,
    Records,
    SamplingKind,
    fill_parameters,
    kind_of,
    write_parameters,
)

log = logging.getLogger(__name__)

_GREEDY = Sampling()


class ScheduledBatch:
    """``items`` in order, and ``sampled``, those of them that choose tokens.

    ``bucket``: that of the captured step which runs them, ``None`` = they run eagerly.
    ``device_tokens`` int64 [R]: the tokens of all rows on the device, if the host does not know
    them yet. ``errors`` maps the number of a failed sampled item to the message for its client.
    """

    def __init__(
        self,
        items: Sequence[Item],
        bucket: Bucket | None,
        histories: Mapping[str, History],
        device_tokens: torch.Tensor | None = None,
    ) -> None:
        self.items = items
        self.bucket = bucket
        self.device_tokens = device_tokens
        self.sampled = [i for i in items if i.kind is ItemKind.VERIFY or i.sample]
        self.has_drafts = any(item.kind is ItemKind.VERIFY for item in items)
        self.errors: dict[int, str] = {}
        self._histories = [histories[item.request_id] for item in self.sampled]
        self.samplings = [history.sampling for history in self._histories]
        self.sampling_kind: SamplingKind = kind_of(self.samplings)

    @cached_property
    def parameters(self) -> Records:
        """``PARAMETER_ROW`` of all sampled rows."""
        counts = [sampled_rows(item) for item in self.sampled]
        parameters, first = np.empty(sum(counts), PARAMETER_ROW), 0
        for number, count in enumerate(counts):
            self._write(number, parameters[first : first + count])
            first += count
        return parameters

    def put_parameters(self, buffers: InputBuffers) -> None:
        """Write the parameters of all sampled rows to the host's arrays. If these hold the same
        requests' with as many rows each, only positions are other ones."""
        counts = [sampled_rows(item) for item in self.sampled]
        whose = (*self.samplings, *counts)
        if buffers.sampling == whose:
            with suppress(Exception):  # which ends its own request, below
                positions = list(chain.from_iterable(map(sampled_positions, self.sampled)))
                buffers.host["position"][: len(positions)] = positions
                return
        fill_parameters(buffers.host, self.parameters)
        buffers.sampling = None if self.errors else whose

    @property
    def lanes(self) -> list[Lane]:
        """What is to be drafted for behind the step."""
        return [
            Lane(item.lease.slot, sampling, tree=item.propose == "tree")
            for item, sampling in zip(self.sampled, self.samplings, strict=True)
            if item.propose != "off"
        ]

    @cached_property
    def first_rows(self) -> list[int]:
        """The first row of each sampled item among those of the step."""
        starts = accumulate((item.rows for item in self.items), initial=0)
        firsts = zip(self.items, starts, strict=False)
        return [start for item, start in firsts if item.kind is ItemKind.VERIFY or item.sample]

    def enter_penalties(self, penalties: PenaltyState) -> None:
        """Fill the slots of the sampled items with the counts and bias of their requests."""
        for number, (item, history) in enumerate(zip(self.sampled, self._histories, strict=True)):
            try:
                penalties.enter(item.lease.slot, history.sampling, history.prompt, history.output)
            except Exception as error:
                self.fail(number, error)

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

    def _write(self, number: int, parameters: Records) -> None:
        """Write the parameters of a sampled item's rows."""
        try:
            positions = sampled_positions(self.sampled[number])
            write_parameters(parameters, self.samplings[number], positions)
        except Exception as error:
            self.fail(number, error)
            write_parameters(parameters, _GREEDY, [0] * len(parameters))


def sampled_rows(item: Item) -> int:
    """The number of rows of a sampled item that choose a token."""
    return item.rows if item.kind is ItemKind.VERIFY else 1
