"""The allocator keeps a limit on the device's memory, and a model planned for it runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

LIMIT = 4.0

LIMITED = f"""
import sys
import torch
from kinfolk.engine.runtime import Runtime
from kinfolk.registry import Registry
from kinfolk.sched.request import Request, Sampling
from kinfolk.settings import load_settings

settings = load_settings(device=sys.argv[1], memory={LIMIT}, slots=1, context=256)
with Runtime.open(None, settings, Registry.discover(settings)) as runtime:
    request = Request("limited", (1, 2, 3), 4, Sampling(temperature=0.0))
    emitted = sum(len(getattr(event, "tokens", ())) for event in runtime.engine.submit(request))
    refused = runtime.engine.uncapturable_ops()
print(emitted, torch.cuda.get_per_process_memory_fraction(0), torch.cuda.max_memory_reserved())
assert not refused, refused
"""
"""In a process of its own: what other tests have left reserved would count."""


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:0"])
def test_a_model_runs_within_its_limit(name):
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, name], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    emitted, fraction, reserved = done.stdout.split()
    assert int(emitted) == 4
    assert 0 < float(fraction) < 1
    assert 0 < int(reserved) <= LIMIT * 2**30
