"""A step's kernels are compiled before it, once for each kind; errors are left to the step."""

from __future__ import annotations

import logging
from contextlib import contextmanager

import pytest
import torch

from kinfolk.engine.kernel_warmup import KernelWarmup
from kinfolk.ops.binding import NotPrecompilableError

GPU = torch.device("cuda", 0)


class Watched:
    """A stand-in for the ops that records what is run during warmup."""

    def __init__(self):
        self.launches_suppressed = False

    @contextmanager
    def precompiling(self):
        self.launches_suppressed = True
        try:
            yield
        finally:
            self.launches_suppressed = False


def test_each_kind_is_warmed_up_once():
    ops, seen = Watched(), []
    warmup = KernelWarmup(ops, GPU)
    for kind in ("prompt", "decode", "prompt"):
        warmup.before(kind, lambda: seen.append(ops.launches_suppressed))
    assert seen == [True, True]


def test_nothing_is_warmed_up_where_nothing_is_compiled():
    KernelWarmup(Watched(), torch.device("cpu")).before("prompt", pytest.fail)


@pytest.mark.parametrize(
    ("error", "level"),
    [(NotPrecompilableError("op x runs on y"), "INFO"), (ValueError("z"), "WARN")],
)
def test_a_failure_is_told_and_left_to_the_step(caplog, error, level):
    def fail():
        raise error

    ops = Watched()
    with caplog.at_level(logging.INFO):
        KernelWarmup(ops, GPU).before("prompt", fail)
    assert not ops.launches_suppressed
    (record,) = caplog.records
    assert record.levelname.startswith(level)
