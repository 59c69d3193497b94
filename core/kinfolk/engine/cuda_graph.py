"""CUDA graphs: a function of fixed buffers is captured once and then replayed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch

from kinfolk.errors import EngineError

T = TypeVar("T")

WARM_UPS = 2
"""Runs before a capture: kernels are compiled and loaded, and libraries get their workspaces."""


class Capture(Protocol):
    """A way to run a body again and again on the same buffers."""

    def capture(self, body: Callable[[], T]) -> Callable[[], T]:
        """A function that does what ``body`` does, on the contents that the buffers then have.

        ``body`` may be run beforehand, on buffers that are all padding.
        """
        ...


class EagerCapture:
    """Runs the body as it is: all of the path but the graph itself, for devices without graphs."""

    def capture(self, body: Callable[[], T]) -> Callable[[], T]:
        return body


class CudaCapture:
    """Captures CUDA graphs, which share one pool of memory: they are never replayed at once.

    A capture has a stream of its own, which the current one waits for. Other threads may use the
    device meanwhile.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def capture(self, body: Callable[[], T]) -> Callable[[], T]:
        """Raises :class:`EngineError` if the capture fails, and what ``body`` raises in the runs
        before it."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UPS):
                    body()
                self._stream.synchronize()
                graph, result = self._captured(body)
        finally:
            # Also after a body that failed: its buffers are given back to the current stream.
            current.wait_stream(self._stream)

        def replay() -> T:
            graph.replay()
            return result

        return replay

    def _captured(self, body: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        graph = torch.cuda.CUDAGraph()
        # Collected in the middle, a tensor or a kernel's module would spoil the capture.
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
    """End a capture that has failed; a second error about it is dropped."""
    try:
        graph.capture_end()
    except RuntimeError:
        return


def capture_for(device: torch.device) -> Capture:
    return CudaCapture(device) if device.type == "cuda" else EagerCapture()
