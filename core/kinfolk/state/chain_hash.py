"""Hashes of chunks of tokens, each of the chunk and of the hash before it. Torch-free.

The hash of a chunk stands for all tokens up to its end, and for the model: the first chunk's parent
is the root, made of the salt (:mod:`kinfolk.state.cache_salt`). Hashes have 128 bits and are the
same in every process.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

HASH_BYTES: Final = 16


def root(salt: int) -> int:
    """The parent of every first chunk."""
    return next_hash(salt, b"root")


def paged_root(parent: int, paging: str) -> int:
    """The parent of every first chunk of sequences that missed something. ``parent`` is that of the
    others; ``paging`` says what they are paged by, so that nobody else finds them."""
    return next_hash(parent, paging.encode()) if paging else parent


def next_hash(parent: int, packed: bytes | memoryview) -> int:
    """The hash of tokens behind ``parent``: of a chunk, or of the tokens behind the last one.

    ``packed`` are int64 tokens side by side, 8 bytes each.
    """
    return int.from_bytes(_digest(parent.to_bytes(HASH_BYTES, "big"), packed), "big")


def chunk_hashes(parent: int, packed: bytes | memoryview, chunk_bytes: int) -> list[int]:
    """The hash of each full chunk of ``packed``, which follows ``parent``."""
    known, view, found = parent.to_bytes(HASH_BYTES, "big"), memoryview(packed), []
    for start in range(0, len(packed) - chunk_bytes + 1, chunk_bytes):
        known = _digest(known, view[start : start + chunk_bytes])
        found.append(int.from_bytes(known, "big"))
    return found


def hex_of(known: int) -> str:
    """A hash as 32 hexadecimal digits, as files are named."""
    return f"{known:032x}"


def pack(hashes: list[int]) -> bytes:
    """Hashes side by side, 16 bytes each, the most significant byte first."""
    return b"".join(known.to_bytes(HASH_BYTES, "big") for known in hashes)


def unpack(packed: bytes) -> list[int]:
    """The inverse of :func:`pack`."""
    return [
        int.from_bytes(packed[start : start + HASH_BYTES], "big")
        for start in range(0, len(packed), HASH_BYTES)
    ]


def _digest(parent: bytes, packed: bytes | memoryview) -> bytes:
    hashed = blake2b(parent, digest_size=HASH_BYTES)
    hashed.update(packed)
    return hashed.digest()
