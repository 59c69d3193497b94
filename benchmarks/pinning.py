"""What allocating pinned host memory costs steps that run beside it.

    python benchmarks/pinning.py [--gib N]

Steps are replays of a graph of small kernels, each waited for, as a decoding engine does. In turns
they run alone, with a thread that allocates pinned memory in slabs of one size, and with slabs that
the same thread allocates as plain memory, touches, and registers. Prints the time of a slab, and
the median and the longest step.
"""

from __future__ import annotations

import argparse
import json
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
    slab = torch.empty(nbytes, dtype=torch.uint8)
    slab.zero_()
    error = torch.cuda.cudart().cudaHostRegister(slab.data_ptr(), nbytes, 0)
    assert int(error) == 0, error
    return slab


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=1.0)
    options = parser.parse_args()
    step = graph_step()
    for _ in range(50):
        step()
    report("alone", [], timed_until(step, time.perf_counter() + 1))
    for name, make in (("allocated", allocated), ("registered", registered)):
        for size in (64, 16, 4):
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
            report(f"{name}, {size} MiB", times, steps)
            if name == "registered":
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


def report(what: str, slabs: list[float], steps: list[float]) -> None:
    row = {
        "what": what,
        "slab_ms": round(1e3 * statistics.median(slabs), 2) if slabs else None,
        "step_ms": round(1e3 * statistics.median(steps), 3),
        "step_p95_ms": round(1e3 * sorted(steps)[int(0.95 * len(steps))], 3),
        "longest_ms": round(1e3 * max(steps), 3),
        "steps": len(steps),
    }
    say(json.dumps(row) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
