"""Frames: what the daemon writes, as little-endian signed 32-bit integers. Pure functions.

``LEGACY`` writes one word for each token or mark. ``TAGGED`` writes frames ``[-2, id, word]`` of 12
bytes. ``TAGGED_V2`` also says what failed, and sends texts in frames ``[-3, id, four bytes]``:
UTF-8 that ends with a zero byte and is padded with more of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

ENDED: Final = -1
"""The request has ended, or the command is done."""
TAG: Final = -2
"""Begins a frame of a token or a mark."""
TEXT: Final = -3
"""Begins a frame of four bytes of a text."""
TURN_OVER: Final = -4
"""The request has used up its quantum and lives on."""
FAILED: Final = -5
"""What ``ENDED`` ends has failed; only in the second version."""

WORD_BYTES: Final = 4
FRAME_BYTES: Final = 3 * WORD_BYTES


class Wire(Enum):
    LEGACY = "legacy"
    TAGGED = "tagged"
    TAGGED_V2 = "tagged-v2"

    @property
    def tagged(self) -> bool:
        return self is not Wire.LEGACY

    @property
    def says_more(self) -> bool:
        """Whether it has texts, failures and the ends of drains."""
        return self is Wire.TAGGED_V2


@dataclass(frozen=True, slots=True)
class Frame:
    """A token (0 or more) or a mark of a request, or with ``tag`` ``TEXT`` a part of a text. A
    legacy stream has no ``request``: 0."""

    request: int
    word: int
    tag: int = TAG


def encode(wire: Wire, request: int, word: int) -> bytes:
    """The bytes of a token or a mark."""
    if wire is Wire.LEGACY:
        return struct.pack("<i", word)
    return struct.pack("<iii", TAG, request, word)


def encode_text(request: int, text: str) -> bytes:
    """The frames of a text, for the second version only. Zero characters are left out."""
    raw = text.replace("\0", "").encode("utf-8", "backslashreplace")
    raw += bytes(WORD_BYTES - len(raw) % WORD_BYTES)
    head = struct.pack("<ii", TEXT, request)
    return b"".join(
        head + raw[start : start + WORD_BYTES] for start in range(0, len(raw), WORD_BYTES)
    )


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
        size = FRAME_BYTES if self._wire.tagged else WORD_BYTES
        while len(self._bytes) >= size:
            yield self._frame(struct.unpack(f"<{size // WORD_BYTES}i", self._bytes[:size]))
            del self._bytes[:size]

    def _frame(self, words: tuple[int, ...]) -> Frame:
        if not self._wire.tagged:
            return Frame(0, words[0])
        tag, request, word = words
        if tag != TAG and (tag != TEXT or self._wire is not Wire.TAGGED_V2):
            raise ValueError(f"no frame begins with {tag}, {request}, {word}")
        return Frame(request, word, tag)


class TextReader:
    """Puts the texts of a stream together from its text frames."""

    def __init__(self) -> None:
        self._parts: dict[int, bytes] = {}

    def feed(self, frame: Frame) -> str | None:
        """A text, when its last frame has arrived."""
        raw = self._parts.pop(frame.request, b"") + struct.pack("<i", frame.word)
        if raw.endswith(b"\0"):
            return raw.rstrip(b"\0").decode()
        self._parts[frame.request] = raw
        return None
