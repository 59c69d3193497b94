"""CUDA graphs: a function of fixed buffers is captured once and then replayed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

from kinfolk.errors import EngineError

T = TypeVar("T")

WARM_UPS = 1
"""Runs before a capture: kernels are compiled and loaded, and libraries get their workspaces."""


class Capture(Protocol):
    """Makes a function of fixed buffers replayable."""

    def capture(self, body: Callable[[], T]) -> Callable[[], T]:
        """A function that repeats ``body`` on the current contents of the buffers.

        ``body`` may be run before, on buffers that are all padding.
        """
        ...


class EagerCapture:
    """Replays by calling the body: the captured path without graphs, for devices that lack them."""

    def capture(self, body: Callable[[], T]) -> Callable[[], T]:
        return body


class CudaCapture:
    """Captures CUDA graphs, which share one memory pool: no two of them are replayed at once.

    A capture runs on a stream of its own, which the current stream waits for. Other threads may
    use the device meanwhile.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def capture(self, body: Callable[[], T]) -> Callable[[], T]:
        """Raises :class:`EngineError` if the capture fails; errors of ``body`` in the warm-up runs
        pass through."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UPS):
                    body()
                self._stream.synchronize()
                graph, result = self._captured(body)
        finally:
            # Also after a body that failed: its buffers return to the current stream.
            current.wait_stream(self._stream)

        def replay() -> T:
            graph.replay()
            return result

        return replay

    def _captured(self, body: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        graph = torch.cuda.CUDAGraph()
        # A tensor or a kernel's module freed by the collector would break the capture.
        collects = gc.isenabled()
        gc.disable()
        try:
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = body()
            except Exception as error:
                _abandon(graph)
                raise EngineError(
                    f"a CUDA graph cannot be captured: {type(error).__name__}: {error}"
                ) from error
            try:
                graph.capture_end()
            except RuntimeError as error:
                raise EngineError(f"a CUDA graph cannot be captured: {error}") from error
        finally:
            if collects:
                gc.enable()
        return graph, result


def _abandon(graph: Any) -> None:
    """End a failed capture; the error of ending it is dropped."""
    try:
        graph.capture_end()
    except RuntimeError:
        return


def capture_for(device: torch.device) -> Capture:
    return CudaCapture(device) if device.type == "cuda" else EagerCapture()
