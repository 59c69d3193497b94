"""A limit on the device's memory is kept by the allocator, and what was planned for it runs."""

from __future__ import annotations

import pytest
import torch

from kinfolk.engine.runtime import Runtime
from kinfolk.registry import Registry
from kinfolk.sched.request import Request, Sampling
from kinfolk.settings import load_settings

pytestmark = pytest.mark.gpu

LIMIT = 4.0


@pytest.fixture
def no_limit_afterwards():
    yield
    torch.cuda.set_per_process_memory_fraction(1.0, torch.cuda.current_device())


@pytest.mark.usefixtures("no_limit_afterwards")
@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:0"])
def test_a_model_runs_within_its_limit(name):
    settings = load_settings(device=name, memory=LIMIT, slots=1, context=256)
    registry = Registry.discover(settings)
    torch.cuda.reset_peak_memory_stats()
    with Runtime.open(None, settings, registry) as runtime:
        request = Request("limited", (1, 2, 3), 4, Sampling(temperature=0.0))
        emitted = sum(len(getattr(event, "tokens", ())) for event in runtime.engine.submit(request))
    assert emitted == 4
    assert torch.cuda.get_per_process_memory_fraction(0) < 1.0
    assert torch.cuda.max_memory_reserved() <= LIMIT * 2**30
