"""Slabs of pinned memory, with a driver that only counts."""

from __future__ import annotations

import _thread
import gc
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from kinfolk.errors import CapacityError
from kinfolk.state.slabs import Slabs

CUDA = torch.device("cuda", 0)
OUT_OF_MEMORY = 2


class Driver:
    """Registers up to ``room`` slabs."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.registered: set[int] = set()

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        if len(self.registered) == self.room:
            return OUT_OF_MEMORY
        assert address % 4096 == 0
        self.registered.add(address)
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        self.registered.remove(address)
        return 0

    def cudaGetErrorString(self, error: int) -> str:
        return "out of memory"


def soon(holds) -> bool:
    end = time.monotonic() + 30
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


@pytest.fixture
def driver(monkeypatch):
    counting = Driver(6)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: counting)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    yield counting
    gc.collect()
    assert soon(lambda: not counting.registered), "a test has left slabs behind"


def test_slabs_are_made_ahead_and_given_back_with_their_owner(driver):
    slabs = Slabs(8192, CUDA)
    assert not driver.registered
    slabs.make_ahead(3)
    assert soon(lambda: len(driver.registered) == 3), "nobody has taken any"
    taken = [slabs.take() for _ in range(4)]
    assert len({slab.data_ptr() for slab in taken}) == len(driver.registered) == 4
    slabs.make_ahead(2)
    del slabs
    gc.collect()
    assert soon(lambda: not driver.registered)
    assert all(slab.sum() == 0 for slab in taken), "their memory is there while somebody reads it"


def test_a_driver_that_refuses_is_an_error_of_whoever_needs_the_slab(driver):
    slabs = Slabs(8192, CUDA)
    slabs.make_ahead(10)
    for _ in range(6):
        slabs.take()
    with pytest.raises(CapacityError, match="no 8192 bytes more of pinned memory after 6 times"):
        slabs.take()


def test_an_owner_may_be_collected_inside_of_a_submit(driver):
    """A collection begins with any allocation, also of a pool that holds the lock of all pools."""
    owners = [Slabs(8192, CUDA)]
    owners[0].make_ahead(2)
    assert soon(lambda: len(driver.registered) == 2)

    class Name:
        def __str__(self) -> str:
            owners.clear()
            return "collecting"

    pool = ThreadPoolExecutor(1, Name())
    submitting = threading.Thread(target=pool.submit, args=(int,), daemon=True)
    submitting.start()
    submitting.join(30)
    assert not submitting.is_alive(), "it waits for a lock that it holds"
    pool.shutdown()
    assert soon(lambda: not driver.registered)


def test_without_a_thread_the_memory_stays_mapped(driver, monkeypatch):
    def refuse(*arguments):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    made = Slabs(8192, CUDA)
    slab = weakref.ref(made.take())
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    del made
    gc.collect()
    assert [str(each.exc_value) for each in unraisable] == ["can't start new thread"]
    assert slab() is not None
    driver.registered.clear()


PLAYED_DRIVER = """
import gc
import os
import time
from types import SimpleNamespace

import torch

from kinfolk.state.slabs import Slabs

driver = SimpleNamespace(
    cudaHostRegister=lambda address, nbytes, flags: 0,
    cudaHostUnregister=lambda address: time.sleep(0.2) or print("given back", flush=True),
)
torch.cuda.cudart = lambda: driver
torch.cuda.synchronize = lambda device: None
slabs = Slabs(8192, torch.device("cuda", 0))
slabs.take()
"""


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("del slabs", "given back\n"),
        ("gc.collect()", ""),
        ("del slabs\nif not os.fork():\n    raise SystemExit\nos.wait()", "given back\n"),
    ],
    ids=["before the end", "never", "beside a fork"],
)
def test_a_process_ends_well_whenever_slabs_are_given_back(rest, said):
    """No abort by a thread in a library, and no wait for a thread of another process."""
    ended = subprocess.run(
        [sys.executable, "-c", PLAYED_DRIVER + rest], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, said, "")


def test_a_release_that_begins_at_the_very_end_is_left_to_the_system():
    late = "import kinfolk.state.slabs as module\nmodule._end()\ndel slabs\ngc.collect()"
    ended = subprocess.run(
        [sys.executable, "-c", PLAYED_DRIVER + late], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
