"""Bytes on their way to a reader, who may be slow: a bounded buffer, and a thread that writes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

OUTBOX_BYTES: Final = 2**20
"""Most bytes that wait for a reader: 87 000 frames."""

REPLY_BYTES: Final = 2**16
"""More at once are the reply to one line, which may be longer than a reader may be behind; one such
reply may wait."""

FLUSH_SECONDS: Final = 30.0
"""Longest wait for a reader at the end."""


class Outbox:
    """``put`` never blocks. A reader is lost when ``write`` fails, or when more bytes wait than
    ``most``; then ``on_lost`` is called once, from any thread, and all bytes are dropped. One long
    reply does not count.

    ``write`` takes bytes, may block, and returns how many it has written.
    """

    def __init__(
        self,
        write: Callable[[bytes], int | None],
        on_lost: Callable[[str], None],
        most: int = OUTBOX_BYTES,
    ) -> None:
        self._write = write
        self._on_lost = on_lost
        self._most = most
        self._bytes = bytearray()
        self._reply = 0
        self._changed = threading.Condition()
        self._closing = False
        self._lost = False
        self._thread = threading.Thread(target=self._run, name="kinfolk-out", daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> None:
        with self._changed:
            if self._lost:
                return
            if len(data) > REPLY_BYTES and not self._reply:
                self._reply = len(data)
            if len(self._bytes) + len(data) <= self._most + self._reply:
                self._bytes += data
                self._changed.notify()
                return
        self._lose(f"more than {self._most} bytes wait for a reader that is too slow")

    def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Write what waits, as long as the reader takes it within ``seconds``."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if not self._lost:  # else a write may block for ever
            self._thread.join(seconds)

    def _lose(self, reason: str) -> None:
        with self._changed:
            if self._lost:
                return
            self._lost = True
            self._bytes.clear()
            self._changed.notify()
        self._on_lost(reason)

    def _run(self) -> None:
        while data := self._next():
            try:
                while data:
                    # A file object without a number of bytes has written all.
                    written = self._write(data)
                    data = data[len(data) if written is None else written :]
            except Exception as error:
                self._lose(str(error) or "the reader has gone")

    def _next(self) -> bytes:
        """What waits, as soon as there is something; nothing at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._bytes or self._closing or self._lost)
            data = bytes(self._bytes)
            self._bytes.clear()
            self._reply = 0
            return data
