"""The messages that are shown while kernels are compiled."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from triton import knobs

from kinfolk_kernels.compiling import CompilationNotes, announce_compilations


def test_kernels_that_were_kept_are_not_worth_a_word():
    said = []
    notes = CompilationNotes(said.append)
    notes(cache_hit=True, times=None)
    assert said == []


def test_the_first_is_announced_and_then_a_line_comes_now_and_then():
    said, now = [], [0.0]
    notes = CompilationNotes(said.append, lambda: now[0])
    for second in range(12):
        now[0] = float(second)
        notes(cache_hit=False)
    assert said == [
        "compiling kernels for this GPU, once: they are kept for the next start",
        "6 kernels compiled",
        "11 kernels compiled",
    ]


def test_another_listener_stays(monkeypatch):
    monkeypatch.setattr(knobs.compilation, "listener", None)
    announce_compilations(print)
    ours = knobs.compilation.listener
    assert isinstance(ours, CompilationNotes)
    announce_compilations(print)
    assert knobs.compilation.listener is ours


def test_nothing_is_said_where_there_is_no_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    announce_compilations(pytest.fail)


SIDE_BY_SIDE = """
import threading
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

loaded, compiling = [], []

class Utils:
    def get_device_properties(self, device): return {"max_shared_mem": 232448}
    def load_binary(self, name, *_):
        loaded.append(threading.current_thread().name)
        return 1, 2, 3, 4, 1024

class Driver:
    utils = Utils()
    def launcher_cls(self, source, metadata): return print
    def get_current_device(self): return 1
    def get_current_stream(self, device): return 0
    def get_current_target(self): return GPUTarget("cuda", 90, 32)

driver.set_active(Driver())
knobs.compilation.listener = lambda **_: compiling.append(threading.current_thread().name)
from kinfolk_kernels.compiling import side_by_side
from kinfolk_kernels.rms_norm.kernels import norm_kernel
from kinfolk_kernels.rms_norm.triton_backend import rms_norm_rows
with side_by_side():
    for width in (256, 512, 256):
        rms_norm_rows(torch.zeros(4, width), None, 1e-6, torch.float32, int8=False)
compiled, *_ = norm_kernel.device_caches[1]
print(len(compiled), all("kinfolk-compiler" in name for name in compiling), *loaded)
"""


def test_kernels_are_compiled_by_threads_and_loaded_by_one(tmp_path):
    """The target is a device that this machine lacks: only a launch needs the device."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", SIDE_BY_SIDE],
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "True", "MainThread", "MainThread"]
