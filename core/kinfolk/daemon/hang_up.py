"""Notices that a stream has lost its reader, while nothing is written to it."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watching(stream: int | None, on_gone: Callable[[], None]) -> Iterator[None]:
    """Call ``on_gone`` once, on a thread of its own, if the reader of a pipe or the other end of a
    socket is closed meanwhile. ``stream`` is the descriptor; nothing is watched if it is ``None``.
    """
    if stream is None or not hasattr(select, "poll"):
        yield
        return
    stopped, stop = os.pipe()

    def watch() -> None:
        poll = select.poll()
        poll.register(stream, 0)  # errors and hang-ups are told in any case
        poll.register(stopped, 0)
        if any(descriptor == stream for descriptor, _ in poll.poll()):
            on_gone()

    thread = threading.Thread(target=watch, name="kinfolk-hang-up", daemon=True)
    thread.start()
    try:
        yield
    finally:
        os.close(stop)
        thread.join()
        os.close(stopped)
