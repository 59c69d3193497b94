"""Tokens of a sequence with a chain of hashes, one for each chunk. Torch-free."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Final

from kinfolk.state.chain_hash import chunk_hashes
from kinfolk.types import CHUNK_POSITIONS

TOKEN_BYTES: Final = 8
CHUNK_BYTES: Final = CHUNK_POSITIONS * TOKEN_BYTES


class HashedTokens:
    """Tokens that are hashed once, for look-ups of any number of prefixes.

    ``packed`` are the tokens, int64 side by side, so that comparing is comparing bytes.
    ``chain[n]`` is the hash of the first n chunks: of ``chain[n - 1]`` and chunk n - 1; the first
    is ``root``, and the same for all tokens that are compared. Tokens behind the last full chunk
    have no hash.
    """

    __slots__ = ("chain", "packed")

    def __init__(
        self, tokens: Sequence[int], before: HashedTokens | None = None, *, root: int = 0
    ) -> None:
        packed = array("q", tokens).tobytes()
        self.packed: bytes = packed if before is None else before.packed + packed
        self.chain: list[int] = [root] if before is None else before.chain.copy()
        rest = memoryview(self.packed)[(len(self.chain) - 1) * CHUNK_BYTES :]
        self.chain += chunk_hashes(self.chain[-1], rest, CHUNK_BYTES)

    def with_root(self, root: int) -> HashedTokens:
        """The same tokens, not to be compared with these."""
        other = HashedTokens((), root=root)
        other.packed = self.packed
        other.chain += chunk_hashes(root, memoryview(self.packed), CHUNK_BYTES)
        return other

    def __len__(self) -> int:
        return len(self.packed) // TOKEN_BYTES

    def followed_by(self, tokens: Sequence[int]) -> HashedTokens:
        """These tokens and more."""
        return HashedTokens(tokens, self) if tokens else self

    def prefix(self, length: int) -> tuple[int, ...]:
        """The first ``length`` tokens."""
        found = array("q")
        found.frombytes(self.packed[: length * TOKEN_BYTES])
        return tuple(found)

    def starts_like(self, other: HashedTokens, length: int) -> bool:
        """Whether the first ``length`` tokens of both are the same; ``other`` has that many."""
        return self.packed.startswith(memoryview(other.packed)[: length * TOKEN_BYTES])
