"""A session on a pair of streams: a thread that reads lines, one that writes, and the caller's,
which executes lines and takes the engine's events in the order of their arrival."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final, Protocol

from kinfolk.daemon.frames import Wire
from kinfolk.daemon.hang_up import watching
from kinfolk.daemon.outbox import OUTBOX_BYTES, Outbox
from kinfolk.daemon.output import Output
from kinfolk.daemon.session import Session
from kinfolk.daemon.surroundings import SessionOptions, TurnEngine
from kinfolk.errors import KinfolkError

log = logging.getLogger(__name__)

MAX_LINE: Final = 2**16
"""Bytes of a line."""

MAX_LINES: Final = 4096
"""Lines that were read and are not executed yet; further ones stay with their sender."""


class LineSource(Protocol):
    """What lines are read from, such as a binary file."""

    def readline(self, size: int, /) -> bytes: ...


class Connection:
    """``write`` takes the bytes of the stream, ``write_text`` those of texts; either may block.
    A reader of the stream who has gone, or for whom more than ``most`` bytes wait, ends the
    session; a reader of texts misses some. ``stream`` is the descriptor of the stream, if it has
    one: then a reader who goes is noticed while nothing is written."""

    def __init__(
        self,
        engine: TurnEngine,
        options: SessionOptions,
        wire: Wire,
        lines: LineSource,
        write: Callable[[bytes], int | None],
        write_text: Callable[[bytes], int | None],
        most: int = OUTBOX_BYTES,
        stream: int | None = None,
    ) -> None:
        self._lines = lines
        self._stream = stream
        self._inbox: SimpleQueue[str | Lost | Callable[[], None] | None] = SimpleQueue()
        self._room = threading.Semaphore(MAX_LINES)
        self._unread = 0
        self._frames = Outbox(write, lambda reason: self._inbox.put(Lost(reason)), most)
        self._texts = Outbox(write_text, lambda reason: log.debug("no more texts: %s", reason))
        output = Output(wire, self._frames.put, self._say)
        self._session = Session(engine, options, output, self._inbox.put)
        self._reader = threading.Thread(target=self._read, name="kinfolk-lines", daemon=True)

    def run(self) -> str:
        """Serve until the lines end and all is done. Returns why the reader was lost, or ""."""
        self._reader.start()
        gone = Lost("the reader has gone")
        try:
            with watching(self._stream, lambda: self._inbox.put(gone)):
                lost = self._serve()
        except BaseException:
            self._session.abandon()
            raise
        finally:
            self._room.release(MAX_LINES)  # nothing reads on behalf of a session that is over
        self._frames.close()
        self._texts.close()
        return lost

    def _serve(self) -> str:
        lost = ""
        while not self._session.over:
            item = self._inbox.get()
            if item is None:
                self._session.end()
            elif isinstance(item, str):
                self._unread += 1
                self._session.line(item)
            elif isinstance(item, Lost):
                lost = lost or item.reason
                self._session.abandon()
            else:
                item()
            self._make_room()
        return lost

    def _make_room(self) -> None:
        done = self._unread - self._session.waiting
        if done > 0:
            self._room.release(done)
            self._unread -= done

    def _say(self, text: str) -> None:
        self._texts.put(f"{text}\n".encode("utf-8", "backslashreplace"))

    def _refuse_long(self) -> None:
        self._unread += 1
        self._session.refuse(f"a line has at most {MAX_LINE} bytes; this one was dropped")

    def _read(self) -> None:
        try:
            while raw := self._lines.readline(MAX_LINE):
                long = len(raw) == MAX_LINE and not raw.endswith(b"\n")
                line = raw.decode("utf-8", "surrogateescape")
                while long and raw and not raw.endswith(b"\n"):
                    raw = self._lines.readline(MAX_LINE)
                self._room.acquire()
                self._inbox.put(self._refuse_long if long else line)
        except (OSError, ValueError, KinfolkError) as error:
            log.debug("no more lines: %s", error)
        finally:
            self._inbox.put(None)


class Lost:
    """The stream cannot be written any more."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
