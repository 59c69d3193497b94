"""Measures the time of a step in a CUDA graph, and the bandwidth of memory."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch


def replay_seconds(step: Callable[[], None], replays: int = 20) -> float:
    """Median time of one replay of a graph of ``step``."""
    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    times = []
    for _ in range(replays + 3):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return statistics.median(times[3:])


def copy_bandwidth() -> float:
    """Bytes a second, read plus written, of a large copy by a kernel.

    Measured outside of a graph, in which the slower copy engine would run the copy.
    """
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    times = []
    for _ in range(23):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return 2 * source.nbytes / statistics.median(times[3:])
