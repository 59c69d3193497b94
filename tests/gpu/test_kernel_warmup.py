"""A cold kernel cache: the kernels of a step were compiled before it, in parallel."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

COLD = """
import threading
from triton import knobs
from kinfolk.engine.kernel_warmup import KernelWarmup
from kinfolk.engine.runtime import Runtime
from kinfolk.registry import Registry
from kinfolk.sched.request import Request, Sampling
from kinfolk.settings import load_settings

warming, ahead, late, real = [], set(), [], KernelWarmup.before

def before(self, kind, body):
    warming.append(kind)
    real(self, kind, body)
    warming.pop()

def listener(*, src, cache_hit, **_):
    if not cache_hit:
        if warming:
            ahead.add(threading.current_thread().name)
        else:
            late.append(src.fn.__name__)

KernelWarmup.before = before
knobs.compilation.listener = listener
settings = load_settings(device="cuda", slots=1, context=512)
with Runtime.open(None, settings, Registry.discover(settings)) as runtime:
    for prompt in (5, 200):
        request = Request(str(prompt), tuple(range(3, 3 + prompt)), 4, Sampling(temperature=0.0))
        events = list(runtime.engine.submit(request))
        assert events[-1].error is None, events
print(len(ahead), *sorted(set(late)))
"""

AFTER_LOGITS = {"look_kernel", "choose_kernel", "pack_outputs_kernel", "slices_kernel"}
"""Of steps that are not recorded: what chooses and reports is launched on its own."""


def test_kernels_are_compiled_before_the_step_by_several_threads(tmp_path):
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", COLD], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    threads, *late = done.stdout.split()
    assert int(threads) > 1
    assert set(late) <= AFTER_LOGITS
