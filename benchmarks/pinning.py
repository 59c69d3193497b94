"""What allocating pinned host memory costs steps that run beside it, and how fast copies are then.

    python benchmarks/pinning.py [--gib N] [--size MIB]…

Steps are replays of a graph of small kernels, each waited for, as a decoding engine does. In turns
they run alone, with a thread that allocates pinned memory in slabs of one size, and with slabs that
the same thread maps, touches, and registers, in small and in huge pages. Prints the time of a slab,
the median and the longest step, and the rate of copying all slabs to the device and back.
"""

from __future__ import annotations

import argparse
import json
import mmap
import statistics
import sys
import threading
import time
from collections.abc import Callable

import torch

KERNELS = 400
NUMBERS = 1 << 20
MIB = 1 << 20

say = sys.stdout.write


def allocated(nbytes: int) -> torch.Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)


def registered(nbytes: int) -> torch.Tensor:
    return _registered(mmap.mmap(-1, nbytes))


def registered_huge(nbytes: int) -> torch.Tensor:
    memory = mmap.mmap(-1, nbytes)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return _registered(memory)


def _registered(memory: mmap.mmap) -> torch.Tensor:
    slab = torch.frombuffer(memory, dtype=torch.uint8)
    slab.zero_()
    error = torch.cuda.cudart().cudaHostRegister(slab.data_ptr(), len(slab), 0)
    assert int(error) == 0, error
    return slab


KINDS = {"allocated": allocated, "registered": registered, "in huge pages": registered_huge}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--size", type=int, action="append", help="MiB of a slab; default: several")
    options = parser.parse_args()
    step = graph_step()
    for _ in range(50):
        step()
    report("alone", [], timed_until(step, time.perf_counter() + 1))
    for name, make in KINDS.items():
        for size in options.size or (64, 16, 8, 4):
            slabs: list[torch.Tensor] = []
            times: list[float] = []
            count = int(options.gib * 1024) // size

            def work(make=make, size=size, count=count, slabs=slabs, times=times) -> None:
                for _ in range(count):
                    began = time.perf_counter()
                    slabs.append(make(size * MIB))
                    times.append(time.perf_counter() - began)

            thread = threading.Thread(target=work)
            thread.start()
            steps = timed_until(step, None, thread)
            thread.join()
            report(f"{name}, {size} MiB", times, steps, *copy_rates(slabs))
            if make is not allocated:
                for slab in slabs:
                    torch.cuda.cudart().cudaHostUnregister(slab.data_ptr())
            slabs.clear()
            torch._C._host_emptyCache()


def graph_step() -> Callable[[], None]:
    x = torch.zeros(NUMBERS, device="cuda")
    graph = torch.cuda.CUDAGraph()
    x.add_(1)
    with torch.cuda.graph(graph):
        for _ in range(KERNELS):
            x.add_(1)

    def step() -> None:
        graph.replay()
        done = torch.cuda.Event()
        done.record()
        done.synchronize()

    return step


def timed_until(
    step: Callable[[], None], end: float | None, thread: threading.Thread | None = None
) -> list[float]:
    times = []
    while (thread is not None and thread.is_alive()) or (end and time.perf_counter() < end):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return times


def copy_rates(slabs: list[torch.Tensor]) -> tuple[float, float]:
    """Bytes a second of copying all slabs to the device, and back."""
    there = [torch.empty_like(slab, device="cuda") for slab in slabs]
    rates = []
    for sources, targets in ((slabs, there), (there, slabs)):
        times = []
        for _ in range(3):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for source, target in zip(sources, targets, strict=True):
                target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        rates.append(sum(map(len, slabs)) / statistics.median(times))
    return rates[0], rates[1]


def report(what: str, slabs: list[float], steps: list[float], *rates: float) -> None:
    row = {
        "what": what,
        "slab_ms": round(1e3 * statistics.median(slabs), 2) if slabs else None,
        "step_ms": round(1e3 * statistics.median(steps), 3),
        "step_p95_ms": round(1e3 * sorted(steps)[int(0.95 * len(steps))], 3),
        "longest_ms": round(1e3 * max(steps), 3),
        "steps": len(steps),
        "to_device_and_back_GB_s": [round(rate / 1e9, 1) for rate in rates],
    }
    say(json.dumps(row) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
