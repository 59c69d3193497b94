"""Files of token ids: raw little-endian 32-bit integers, or with their number in front."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

import numpy as np

from kinfolk.errors import OutputError, RequestError

_TOKEN_SIZE: Final = 4


def read_tokens(
    path: str, most: int, *, counted: bool = False, whose: str = "the context holds"
) -> tuple[int, ...]:
    """The token ids in a file of at most ``most``, which is ``whose`` limit. Raises
    :class:`RequestError`."""
    try:
        # A pipe or a device may never end.
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise RequestError(f"{path}: is no file of token ids")
        if found.st_size > (most + counted) * _TOKEN_SIZE:
            raise RequestError(
                f"{path}: has {found.st_size // _TOKEN_SIZE - counted} tokens, {whose} {most}"
            )
        raw = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RequestError(f"{path!r}: cannot be read: {reason}") from None
    if not raw or len(raw) % _TOKEN_SIZE:
        raise RequestError(f"{path}: {len(raw)} bytes are no 32-bit integers")
    tokens: list[int] = np.frombuffer(raw, "<i4").tolist()
    if not counted:
        return tuple(tokens)
    if tokens[0] != len(tokens) - 1:
        raise RequestError(f"{path}: says {tokens[0]} tokens and has {len(tokens) - 1}")
    return tuple(tokens[1:])


def write_tokens(path: str, tokens: list[int]) -> None:
    """Write a counted file. Raises :class:`OutputError`."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise OutputError(f"{path}: is no file")  # a pipe may never be read
    try:
        Path(path).write_bytes(np.array([len(tokens), *tokens], "<i4").tobytes())
    except OSError as error:
        raise OutputError.of(Path(path), error) from None
    except ValueError as error:  # a zero byte in the path
        raise OutputError(f"{path!r}: cannot be written: {error}") from None
