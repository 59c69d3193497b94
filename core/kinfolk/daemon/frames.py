"""Frames: what the daemon writes, as little-endian signed 32-bit integers. Pure functions.

``LEGACY`` writes one word for each token or mark. ``TAGGED`` writes frames ``[-2, id, word]`` of 12
bytes. ``TAGGED_V2`` also says what failed, and sends texts: ``[-3, id, n]`` and n bytes of UTF-8.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

DONE: Final = -1
"""The request has ended, or the command is done."""
TAG: Final = -2
"""Begins a frame of a token or a mark."""
TEXT: Final = -3
"""Begins a text."""
TURN_OVER: Final = -4
"""The request has used up its quantum and lives on."""
FAILED: Final = -5
"""What ``DONE`` ends has failed; only in the second version."""

WORD_BYTES: Final = 4
FRAME_BYTES: Final = 3 * WORD_BYTES


class Wire(Enum):
    LEGACY = "legacy"
    TAGGED = "tagged"
    TAGGED_V2 = "tagged-v2"

    @property
    def tagged(self) -> bool:
        return self is not Wire.LEGACY


@dataclass(frozen=True, slots=True)
class Frame:
    """A token (0 or more) or a mark of a request; of a text also the ``text``, and ``word`` is the
    number of its bytes. A legacy stream has no ``request``: 0."""

    request: int
    word: int
    text: str | None = None


def encode(wire: Wire, request: int, word: int) -> bytes:
    """The bytes of a token or a mark."""
    if wire is Wire.LEGACY:
        return struct.pack("<i", word)
    return struct.pack("<iii", TAG, request, word)


def encode_text(request: int, text: str) -> bytes:
    """The bytes of a text, for the second version only."""
    raw = text.encode("utf-8", "backslashreplace")
    return struct.pack("<iii", TEXT, request, len(raw)) + raw


class FrameReader:
    """Takes a stream apart, wherever it was cut: feed it bytes, iterate over what is complete.

    Raises :class:`ValueError` for bytes that begin no frame.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._bytes = bytearray()

    @property
    def rest(self) -> int:
        """Bytes of a frame that is not complete."""
        return len(self._bytes)

    def feed(self, data: bytes) -> Iterator[Frame]:
        self._bytes += data
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> Frame | None:
        size = FRAME_BYTES if self._wire.tagged else WORD_BYTES
        if len(self._bytes) < size:
            return None
        if not self._wire.tagged:
            return Frame(0, *struct.unpack("<i", self._cut(size)))
        tag, request, word = struct.unpack_from("<iii", self._bytes)
        if tag == TAG:
            self._cut(size)
            return Frame(request, word)
        if tag != TEXT or self._wire is not Wire.TAGGED_V2 or word < 0:
            raise ValueError(f"no frame begins with {tag}, {request}, {word}")
        if len(self._bytes) < size + word:
            return None
        return Frame(request, word, self._cut(size + word)[size:].decode())

    def _cut(self, size: int) -> bytes:
        head = bytes(self._bytes[:size])
        del self._bytes[:size]
        return head
