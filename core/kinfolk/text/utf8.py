"""Invalid UTF-8: its description for messages, and byte counts of text with U+FFFD."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

_REPLACEMENT: Final = "\ufffd"
_OTHER_ENCODINGS: Final = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def fault(error: UnicodeDecodeError) -> str:
    """``is not UTF-8: byte 0xE9 at offset 17``"""
    byte = f"is not UTF-8: byte 0x{error.object[error.start]:02X} at offset {error.start}"
    other = _OTHER_ENCODINGS.get(bytes(error.object[:2]))
    return f"{byte}; it looks like {other}" if other and error.start == 0 else byte


def original_sizes(raw: bytes, sizes: Sequence[int]) -> list[int]:
    """The number of bytes of ``raw`` that each piece of its decoded text covers.

    The text is ``raw`` decoded with U+FFFD for invalid bytes; ``sizes`` are the UTF-8 bytes of its
    consecutive pieces. The bytes that a U+FFFD replaces count at its first byte.
    """
    import numpy as np

    replaced = list(_replaced(raw))
    if not replaced:
        return list(sizes)
    length = len(raw) + sum(3 - lost for _, lost in replaced)
    counts = np.ones(length, np.int64)
    for offset, lost in replaced:
        counts[offset : offset + 3] = lost, 0, 0
    before = np.concatenate(([0], np.cumsum(counts)))
    ends = np.minimum(np.cumsum([0, *sizes]), length)
    covered: list[int] = np.diff(before[ends]).tolist()
    return covered


def _replaced(raw: bytes) -> Iterator[tuple[int, int]]:
    """(offset in bytes of the text, replaced bytes of ``raw``) of each U+FFFD for invalid bytes."""
    offset = position = 0
    for part in raw.decode("utf-8", "replace").split(_REPLACEMENT)[:-1]:
        size = len(part.encode("utf-8"))
        offset, position = offset + size, position + size
        lost = _invalid(raw[position : position + 4])
        if lost:
            yield offset, lost
        offset, position = offset + 3, position + (lost or 3)


def _invalid(raw: bytes) -> int:
    """The number of leading bytes of ``raw`` that one U+FFFD replaces, 0 if they are a
    character."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.end if error.start == 0 else 0
    return 0
