"""The host arena of experts."""

from __future__ import annotations

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


def test_memory_that_cannot_be_locked_says_how_much_and_what_limits_it():
    def refuse(memory):
        raise RuntimeError("out of memory")

    with pytest.raises(CapacityError, match=r"2.00 GiB .* page-locked \(out of memory\).*ulimit"):
        HostArena(2 * 2**30, CPU, lock=refuse)


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
