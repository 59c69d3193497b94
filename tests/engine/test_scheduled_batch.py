"""Sampling parameters in the buffers of a step: those of the step before stay where they hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kinfolk.engine.history import History
from kinfolk.engine.input_buffers import BucketShape, InputBuffers
from kinfolk.engine.scheduled_batch import ScheduledBatch
from kinfolk.plans import Paged, Section, StateLimits, StatePlan
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.sched.request import Request, Sampling
from kinfolk.spec.sampling import PARAMETERS
from kinfolk.state.state import State

WARM = Sampling(temperature=0.7, top_k=9, top_p=0.9, seed=5, presence_penalty=0.3)
COLD = Sampling(repetition_penalty=1.2)
UNTOUCHED = 17


@pytest.fixture
def buffers():
    limits = StateLimits(slots=4, checkpoints=0, blocks=(8,), context=128, step_rows=32)
    state = State(StatePlan((Paged((Section("k", 1, 4),)),)), limits, torch.device("cpu"))
    return InputBuffers(state, BucketShape(16, 4, 4, 16))


def batch(samplings, counts, start=10):
    items = [
        Item(None, str(number), ItemKind.VERIFY, (1,) * count, start + number)
        for number, count in enumerate(counts)
    ]
    histories = {
        item.request_id: History(Request(item.request_id, (1,), 9, sampling))
        for item, sampling in zip(items, samplings, strict=True)
    }
    return ScheduledBatch(items, None, histories)


def put(buffers, made):
    """The names of the arrays that were written."""
    count = len(made.parameters)
    for name in PARAMETERS:
        buffers.host[name][:] = np.where(np.arange(16) < count, UNTOUCHED, buffers.host[name])
    made.put_parameters(buffers)
    written = set()
    for name in PARAMETERS:
        if (buffers.host[name][:count] != UNTOUCHED).any():
            written.add(name)
            assert (buffers.host[name][:count] == made.parameters[name]).all(), name
    return written


def test_of_the_same_requests_only_positions_are_written(buffers):
    assert put(buffers, batch([WARM, COLD], [3, 2])) == set(PARAMETERS)
    for start in (13, 40):
        assert put(buffers, batch([WARM, COLD], [3, 2], start)) == {"position"}


@pytest.mark.parametrize(
    ("samplings", "counts"),
    [
        ([COLD, WARM], [3, 2]),
        ([WARM, replace(COLD, repetition_penalty=1.3)], [3, 2]),
        ([WARM, COLD], [2, 3]),
        ([WARM], [3]),
        ([WARM, COLD, COLD], [3, 1, 1]),
    ],
)
def test_others_are_written_whole(buffers, samplings, counts):
    put(buffers, batch([WARM, COLD], [3, 2]))
    assert put(buffers, batch(samplings, counts, 30)) == set(PARAMETERS)


def test_so_are_those_in_cleared_arrays(buffers):
    put(buffers, batch([WARM, COLD], [3, 2]))
    buffers.layout = None
    buffers.clear()
    assert put(buffers, batch([WARM, COLD], [3, 2])) == set(PARAMETERS)


def test_and_those_after_a_request_that_failed(buffers):
    spoilt = Sampling()
    object.__setattr__(spoilt, "top_k", "many")
    for _ in range(2):
        made = batch([WARM, spoilt], [3, 2])
        made.put_parameters(buffers)
        assert list(made.errors) == [1]
    assert put(buffers, batch([WARM, COLD], [3, 2])) == set(PARAMETERS)
