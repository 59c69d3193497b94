"""Stored prefixes, and the tree that they form: a prefix lies under the longest one that begins it.
Torch-free.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from kinfolk.residency.kept import KeptResidency
from kinfolk.state.chunks import Checkpoint
from kinfolk.state.hashed_tokens import CHUNK_BYTES, TOKEN_BYTES, HashedTokens
from kinfolk.types import CHUNK_POSITIONS


class PrefixKind(Enum):
    """Why a prefix is stored.

    COMMON   other conversations begin like this: system prompt and tools
    FORK     the next prompt of the conversation may branch off here
    END      an answer ended here
    GRID     a multiple of ``checkpoint_every`` inside a long prompt
    CHOICES  all of a prompt but its last token, for further answers to it
    """

    COMMON = "common"
    FORK = "fork"
    END = "end"
    GRID = "grid"
    CHOICES = "choices"

    @property
    def is_fork(self) -> bool:
        return self in (PrefixKind.COMMON, PrefixKind.FORK)

    @property
    def is_spare(self) -> bool:
        """Whether it is stored in case of need only."""
        return self in (PrefixKind.GRID, PrefixKind.CHOICES)


@dataclass(eq=False, slots=True, repr=False)
class StoredPrefix:
    """A checkpoint, and ``tokens`` of which the first ``length`` are those before it.

    ``key`` is the hash of its full chunks, ``tail`` packed tokens behind them, from the byte
    ``start`` on. ``above`` is the longest stored prefix that begins this one, ``below`` are those
    that this one is ``above``. ``hits`` requests have started from it, the last one at the tick
    ``used``. ``expected``: the next request of its conversation may branch off here. ``spilled``:
    it is on the disk, or need not be written there any more. ``residency``: what the sequence saw,
    if it was paged.
    """

    tokens: HashedTokens
    checkpoint: Checkpoint
    kind: PrefixKind
    length: int
    key: int
    start: int
    tail: bytes
    above: StoredPrefix | None = None
    below: dict[StoredPrefix, None] = field(default_factory=dict)
    hits: int = 0
    used: int = 0
    expected: bool = True
    spilled: bool = False
    residency: KeptResidency | None = None

    @classmethod
    def of(
        cls, tokens: HashedTokens, checkpoint: Checkpoint, kind: PrefixKind, tick: int
    ) -> StoredPrefix:
        length = checkpoint.length
        chunks, stop = length // CHUNK_POSITIONS, length * TOKEN_BYTES
        start = chunks * CHUNK_BYTES
        key, tail = tokens.chain[chunks], tokens.packed[start:stop]
        return cls(tokens, checkpoint, kind, length, key, start, tail, used=tick)

    def begins(self, prompt: HashedTokens) -> bool:
        """Whether a prompt begins with these tokens. Those behind the full chunks are compared
        first: prefixes with the same hash differ there."""
        return prompt.packed.startswith(self.tail, self.start) and prompt.starts_like(
            self.tokens, self.length
        )

    @property
    def marginal(self) -> int:
        """Tokens that would have to be computed again if only the prefix above were left."""
        return self.length - (0 if self.above is None else self.above.length)

    @property
    def ways(self) -> int:
        """In how many ways conversations went on from here. An answer that nobody has continued
        is no way, nor is a point inside a prompt that was never finished, nor what was left."""
        return sum(
            each.kind.is_fork
            or any(deeper.kind.is_fork or deeper.expected for deeper in each.below)
            for each in self.below
        )

    def path(self) -> Iterator[StoredPrefix]:
        """This prefix and all that begin it, the longest first."""
        each: StoredPrefix | None = self
        while each is not None:
            yield each
            each = each.above

    def all_below(self) -> Iterator[StoredPrefix]:
        """Every stored prefix that begins with this one."""
        stack = list(self.below)
        while stack:
            each = stack.pop()
            yield each
            stack.extend(each.below)

    def __repr__(self) -> str:
        return f"<{self.kind.value} of {self.length} tokens>"


class PrefixTree:
    """Keeps ``above`` and ``below`` of stored prefixes."""

    def __init__(self) -> None:
        self._roots: dict[StoredPrefix, None] = {}

    def add(self, entry: StoredPrefix, above: StoredPrefix | None) -> None:
        """``above`` is the longest of the others that begins ``entry``."""
        siblings = self._under(above)
        entry.above = above
        for each in [
            each for each in siblings if each.length > entry.length and entry.begins(each.tokens)
        ]:
            del siblings[each]
            each.above = entry
            entry.below[each] = None
        siblings[entry] = None

    def remove(self, entry: StoredPrefix) -> None:
        siblings = self._under(entry.above)
        del siblings[entry]
        for each in entry.below:
            each.above = entry.above
            siblings[each] = None
        entry.below = {}
        entry.above = None

    def _under(self, above: StoredPrefix | None) -> dict[StoredPrefix, Any]:
        return self._roots if above is None else above.below
