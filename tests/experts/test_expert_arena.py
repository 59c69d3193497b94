"""The host arena of experts."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from kinfolk.errors import CapacityError
from kinfolk.experts.arena import HostArena

pytestmark = pytest.mark.cpu
CPU = torch.device("cpu")


def test_layers_follow_one_another_in_one_mapping():
    arena = HostArena(3 * 512 + 2 * 256, CPU)
    first, second = arena.take(3, 512), arena.take(2, 256)
    assert first.shape == (3, 512)
    assert second.data_ptr() - first.data_ptr() == 3 * 512
    assert not first.any()
    with pytest.raises(CapacityError, match="2048 were planned"):
        arena.take(1, 256)


def test_memory_is_locked_once_and_as_a_whole():
    locked = []
    arena = HostArena(4096, CPU, lock=locked.append)
    arena.take(2, 1024)
    arena.take(1, 256)
    assert [memory.numel() for memory in locked] == [4096]


ERRORS = {
    1: "invalid argument",
    2: "out of memory",
    100: "no CUDA-capable device is detected",
    304: "OS call failed or operation not supported on this OS",
    712: "part or all of the requested memory range is already mapped",
    801: "operation not supported",
}
"""Of a driver that is asked to lock memory."""


class Driver:
    """Refuses with ``error``, 0 = locks."""

    def __init__(self, error: int) -> None:
        self.error = error
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        if not self.error:
            self.locked[address] = nbytes
        return self.error

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0

    def cudaGetErrorString(self, error: int) -> str:
        return ERRORS[error]


@pytest.fixture
def driver(monkeypatch):
    """``driver(error)``, and the devices whose last error was forgotten."""
    forgotten = []

    def use(error):
        made = Driver(error)
        monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
        return made, forgotten

    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr("kinfolk.experts.arena.forget_error", forgotten.append)
    return use


@pytest.mark.parametrize("error", ERRORS)
def test_a_driver_that_refuses_is_told_with_its_words_and_what_limits_it(driver, error):
    gpu = torch.device("cuda", 0)
    _, forgotten = driver(error)
    with pytest.raises(CapacityError) as refused:
        HostArena(1 << 26, gpu)
    told = str(refused.value)
    for part in (
        "0.06 GiB of experts in host memory cannot be page-locked",
        f"({ERRORS[error]}, error {error} of cudaHostRegister)",
        *("ulimit -l", "memlock=-1 of a container", "WSL", "--expert-budget all"),
    ):
        assert part in told
    assert forgotten == [gpu]
    working, _ = driver(0)
    arena = HostArena(1 << 20, gpu)
    assert list(working.locked.values()) == [1 << 20]
    arena.release()
    assert not working.locked


@pytest.mark.parametrize(("answer", "apart", "reads"), [(0, 0, True), (0, 64, False), (1, 9, True)])
def test_a_device_with_another_address_for_host_memory_is_refused(
    driver, monkeypatch, answer, apart, reads
):
    """As the driver says, if it says anything."""

    def ask(found, address, flags):
        found._obj.value = address.value + apart
        return answer

    library = SimpleNamespace(cuMemHostGetDevicePointer_v2=ask)
    monkeypatch.setattr("kinfolk.page_lock.ctypes.CDLL", lambda name: library)
    working, _ = driver(0)
    if reads:
        arena = HostArena(4096, torch.device("cuda", 0))
        assert working.locked
        arena.release()
    else:
        with pytest.raises(CapacityError, match="not read it at the address"):
            HostArena(4096, torch.device("cuda", 0))
    assert not working.locked


def test_without_homes_nothing_is_locked(driver):
    working, _ = driver(0)
    HostArena(0, torch.device("cuda", 0)).release()
    assert not working.locked


def test_memory_that_the_host_does_not_have_is_an_error_with_its_size():
    with pytest.raises(CapacityError, match=r"no 4194304.00 GiB.*--expert-budget"):
        HostArena(2**52, CPU)


def test_released_memory_is_given_back_and_may_still_be_looked_at():
    arena = HostArena(1 << 20, CPU)
    records = arena.take(4, 4096)
    records.fill_(7)
    arena.release()
    arena.release()
    assert not records.any()
