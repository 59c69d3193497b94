"""The thread of the disk tier: reads before writes, one after the other. Torch-free."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kinfolk.state.disk import DiskCache
from kinfolk.state.disk_requests import PointRead, PointWrite, StoreReport

T = TypeVar("T")

_RETRY_SECONDS: Final = 0.005
"""How long to wait before another process's lock is tried again."""


@dataclass(eq=False, slots=True)
class DiskJob:
    """Work in steps, which yield false while they wait for another process."""

    steps: Generator[bool, None, Any]
    future: Future[Any]
    began: bool = False

    def advance(self) -> bool | None:
        """Take a step: whether it did anything, ``None`` once the job is over."""
        if not self.began and not self.future.set_running_or_notify_cancel():
            return None
        self.began = True
        try:
            return next(self.steps)
        except StopIteration as end:
            self.future.set_result(end.value)
        except BaseException as error:
            self.future.set_exception(error)
        return None

    def stop(self) -> None:
        """End the job where it is; the caller learns that it was cancelled."""
        with suppress(OSError):  # what cannot be removed now is needed by no point, and goes later
            self.steps.close()
        if self.began:
            self.future.set_exception(InterruptedError("the disk cache was closed"))
        else:
            self.future.cancel()
            self.future.set_running_or_notify_cancel()


class DiskThread:
    """Executes reads and writes of a :class:`DiskCache` in a thread of its own.

    Each method returns a future at once; its callbacks run in this thread. A read waits for at most
    one file of a write. A future can be cancelled until its work begins.
    """

    def __init__(self, cache: DiskCache) -> None:
        self.cache = cache
        self._reads: deque[DiskJob] = deque()
        self._writes: deque[DiskJob] = deque()
        self._wanted = threading.Condition()
        self._closing = False
        self._flush = True
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="kinfolk-disk", daemon=True)
        self._thread.start()

    def read(self, request: PointRead) -> Future[bool]:
        """Read a point (:meth:`DiskCache.read`)."""
        return self._put(self._reads, _once(lambda: self.cache.read(request)))

    def write(self, entry: PointWrite) -> Future[StoreReport]:
        """Write a point (:meth:`DiskCache.store`), behind all reads and earlier writes."""
        return self._put(self._writes, self.cache.storing(entry))

    def call(self, what: Callable[[], T]) -> Future[T]:
        """Call a method of the cache, behind all writes that were asked for before."""
        return self._put(self._writes, _once(what))

    @property
    def pending(self) -> int:
        """Reads, writes and calls that are not done."""
        return len(self._reads) + len(self._writes)

    @property
    def closing(self) -> bool:
        """Whether the thread takes nothing more."""
        return self._closing

    def abandon(self) -> None:
        """Cancel everything, and wait until no memory of a request is read or written any more:
        for at most a file that is written, or a point that is read."""
        with self._wanted:
            self._abandoned = True
            self._wanted.notify_all()
            self._wanted.wait_for(lambda: not self._abandoned or not self._thread.is_alive())

    def close(self, flush: bool = True, timeout: float | None = None) -> None:
        """End the thread: after everything that waits, but for at most ``timeout`` seconds; without
        ``flush`` after the present file.

        What does not happen any more is cancelled. If the wait is interrupted, as by Ctrl-C, the
        rest is cancelled too.
        """
        self._stop(flush)
        try:
            self._thread.join(timeout)
        finally:
            self._stop(False)
            self._thread.join()

    def _stop(self, flush: bool) -> None:
        with self._wanted:
            self._closing = True
            self._flush = self._flush and flush
            self._wanted.notify()

    def _put(self, queue: deque[DiskJob], steps: Generator[bool, None, T]) -> Future[T]:
        job = DiskJob(steps, Future())
        with self._wanted:
            if self._closing:
                job.stop()
            else:
                queue.append(job)
                self._wanted.notify()
        return job.future

    def _run(self) -> None:
        while (queue := self._next()) is not None:
            moved = queue[0].advance()
            if moved is None:
                with self._wanted:
                    queue.popleft()
            elif not moved:
                with self._wanted:
                    self._wanted.wait_for(self._hurries, _RETRY_SECONDS)
        self._stop_all()

    def _stop_all(self) -> None:
        while self._reads or self._writes:
            (self._reads or self._writes).popleft().stop()
        with self._wanted:
            self._abandoned = False
            self._wanted.notify_all()

    def _hurries(self) -> bool:
        """Whether something other than a waiting write is to be done."""
        return bool(self._reads) or self._abandoned or (self._closing and not self._flush)

    def _next(self) -> deque[DiskJob] | None:
        """The queue whose first job is next; waits for one, and is ``None`` at the end."""
        while True:
            if self._abandoned:
                self._stop_all()
            with self._wanted:
                if self._closing and not self._flush:
                    return None
                if self._abandoned:
                    continue
                if self._reads or self._writes:
                    return self._reads or self._writes
                if self._closing:
                    return None
                self._wanted.wait()


def _once(what: Callable[[], T]) -> Generator[bool, None, T]:
    """Work of one step."""
    yield from ()
    return what()
