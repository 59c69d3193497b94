"""Bytes that should be UTF-8: what is wrong with them, and what they become if that is replaced."""

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
    """How many bytes of ``raw`` each piece of its text stands for.

    The text is ``raw`` with U+FFFD in place of what is not UTF-8, and was cut into pieces of
    ``sizes`` bytes. The first byte of such a U+FFFD counts for all that it replaces.
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
    found: list[int] = np.diff(before[ends]).tolist()
    return found


def _replaced(raw: bytes) -> Iterator[tuple[int, int]]:
    """Where in the text a U+FFFD replaces bytes of ``raw``, and how many."""
    offset = position = 0
    for part in raw.decode("utf-8", "replace").split(_REPLACEMENT)[:-1]:
        size = len(part.encode("utf-8"))
        offset, position = offset + size, position + size
        lost = _invalid(raw[position : position + 4])
        if lost:
            yield offset, lost
        offset, position = offset + 3, position + (lost or 3)


def _invalid(raw: bytes) -> int:
    """How many bytes at the beginning of ``raw`` are replaced together, 0 if it is a character."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.end if error.start == 0 else 0
    return 0
