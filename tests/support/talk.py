"""A connection over pipes with a real engine: what a program that starts the daemon sees."""

from __future__ import annotations

import io
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kinfolk.daemon.compressing import SessionCompressor
from kinfolk.daemon.connection import Connection
from kinfolk.daemon.frames import TAG, FrameReader, TextReader, Wire
from kinfolk.daemon.surroundings import SessionOptions
from kinfolk.engine.engine import Engine

TALK_SECONDS = 60.0
"""Seconds until a test gives up, more than a hundred times what any wait takes."""


class Talk:
    """``say`` sends lines, ``until`` reads frames until one of them arrives."""

    def __init__(
        self,
        engine: Engine,
        folder: Path,
        wire: Wire = Wire.TAGGED_V2,
        *,
        slots: int = 8,
        context: int = 512,
        stop: frozenset[int] = frozenset(),
        write: Callable[[bytes], int | None] | None = None,
        most: int = 2**20,
        compressor: SessionCompressor | None = None,
    ) -> None:
        self.folder = folder
        self.compressor = compressor
        self.frames: list[tuple[int, int]] = []
        self.raw = b""
        self.said: list[str] = []
        self.lost: str | None = None
        self._wire = wire
        self._frames = FrameReader(wire)
        self._texts = TextReader()
        self.texts: dict[int, list[str]] = defaultdict(list)
        lines, self._lines = os.pipe()
        self._out, out = os.pipe()
        self._source = os.fdopen(lines, "rb")
        self._sink = io.FileIO(out, "w")
        self._connection = Connection(
            engine,
            SessionOptions(
                *(f"talk-{id(self)}", slots, context, stop, engine.named_prefixes(), compressor)
            ),
            wire,
            self._source,
            write or self._sink.write,
            lambda data: self.said.append(data.decode()),
            most,
            stream=out,
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.lost = self._connection.run()
        self._sink.close()

    def file(self, name: str, tokens: list[int]) -> Path:
        path = self.folder / name
        np.array(tokens, "<i4").tofile(path)
        return path

    def say(self, *lines: str) -> None:
        os.write(self._lines, "".join(f"{line}\n" for line in lines).encode())

    def read(self) -> bool:
        """Read some bytes; false at the end."""
        data = os.read(self._out, 1 << 16)
        self.raw += data
        for frame in self._frames.feed(data):
            if frame.tag == TAG:
                self.frames.append((frame.request, frame.word))
            elif (text := self._texts.feed(frame)) is not None:
                self.texts[frame.request].append(text)
        return bool(data)

    def until(self, *frame: int, count: int = 1) -> None:
        while self.frames.count((frame[0], frame[1])) < count:
            assert self.read(), f"the stream ended before {frame}: {self.frames}"

    def end(self) -> None:
        """Close the lines and read to the end of the stream."""
        self.hang_up()
        while self.read():
            pass
        self.wait()
        self._source.close()
        self.leave()

    def hang_up(self) -> None:
        if self._lines >= 0:
            os.close(self._lines)
            self._lines = -1

    def leave(self) -> None:
        """Close the stream as a reader."""
        if self._out >= 0:
            os.close(self._out)
            self._out = -1

    def wait(self) -> None:
        self._thread.join(TALK_SECONDS)
        assert not self._thread.is_alive(), "the session hangs"

    @property
    def tokens(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for request, word in self.frames:
            if word >= 0:
                found[request].append(word)
        return dict(found)


def eventually(holds: Callable[[], bool]) -> None:
    """Wait until something holds that other threads bring about."""
    deadline = time.monotonic() + TALK_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.002)
