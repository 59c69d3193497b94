"""A step's kernels are compiled before it, once for its kind and never at its cost."""

from __future__ import annotations

import logging
from contextlib import contextmanager

import pytest
import torch

from kinfolk.engine.rehearsal import Rehearsal
from kinfolk.ops.table import NotRehearsableError

GPU = torch.device("cuda", 0)


class Watched:
    """Stands for the ops: notes what is run while they are rehearsed."""

    def __init__(self):
        self.rehearsing = False

    @contextmanager
    def rehearsed(self):
        self.rehearsing = True
        try:
            yield
        finally:
            self.rehearsing = False


def test_a_kind_is_rehearsed_once():
    ops, seen = Watched(), []
    rehearsal = Rehearsal(ops, GPU)
    for kind in ("prompt", "decode", "prompt"):
        rehearsal.before(kind, lambda: seen.append(ops.rehearsing))
    assert seen == [True, True]


def test_where_nothing_is_compiled_nothing_is_rehearsed():
    Rehearsal(Watched(), torch.device("cpu")).before("prompt", pytest.fail)


@pytest.mark.parametrize(
    ("error", "level"), [(NotRehearsableError("op x runs on y"), "INFO"), (ValueError("z"), "WARN")]
)
def test_a_failure_is_told_and_left_to_the_step(caplog, error, level):
    def fail():
        raise error

    ops = Watched()
    with caplog.at_level(logging.INFO):
        Rehearsal(ops, GPU).before("prompt", fail)
    assert not ops.rehearsing
    (record,) = caplog.records
    assert record.levelname.startswith(level)
