"""Which stored prefixes go first. Torch-free.

Prefixes form a tree (:mod:`kinfolk.state.stored_prefix`). The textbook rule "the least valuable
leaf first" would drop the newest turn of the only conversation before its first one. So the order
is that of :class:`Rank`: what nobody is expected to start from goes before the place where a
conversation goes on next, and a place where conversations part goes last. Within a rank the least
:func:`worth` goes first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum

from kinfolk.state.geometry import chunks_for
from kinfolk.state.stored_prefix import PrefixKind, StoredPrefix


class Rank(IntEnum):
    """What a prefix is good for, the first to go first.

    SPARE      kept in case of need (``PrefixKind.is_spare``), and nobody has started from it
    COVERED    its chunks can be shared from the prefix that extends it, if the family can start at
               any chunk
    BEHIND     its conversation has gone on from here, or from another place
    LIVE       a conversation is expected to go on from here
    SHARED     conversations went on from here in at least two ways: a common system prompt
    """

    SPARE = 0
    COVERED = 1
    BEHIND = 2
    LIVE = 3
    SHARED = 4


def rank_of(entry: StoredPrefix, *, any_chunk: bool) -> Rank:
    """``any_chunk``: whether a sequence may start from the first chunks of a checkpoint."""
    if entry.kind.is_spare and not entry.hits:
        return Rank.SPARE
    if entry.ways >= 2:
        return Rank.SHARED
    if any_chunk and entry.below:
        return Rank.COVERED
    if not entry.expected and (entry.below or entry.kind is PrefixKind.END):
        return Rank.BEHIND
    return Rank.LIVE


@dataclass(frozen=True, slots=True)
class PrefixBytes:
    """Bytes of a checkpoint's recurrent state, and of a block of each pool (window, bytes)."""

    recurrent: int = 0
    blocks: tuple[tuple[int | None, int], ...] = ()

    def own(self, entry: StoredPrefix) -> int:
        """About how many bytes no other stored prefix holds, at least 1.

        What extends a prefix holds its full chunks too; without that, the chunks behind the
        prefix above are its own.
        """
        chunks = 1 if entry.below else chunks_for(entry.marginal)
        total = self.recurrent
        for window, size in self.blocks:
            held = chunks if window is None else min(chunks, chunks_for(window) + 1)
            total += held * size
        return max(1, total)


def worth(entry: StoredPrefix, tick: int, size: PrefixBytes) -> float:
    """Tokens that it saves x (1 + hits) / (bytes x age). Age is counted in ticks, each a look-up or
    a new prefix, so an idle night ages nothing."""
    age = max(1, tick - entry.used)
    return entry.marginal * (1 + entry.hits) / (size.own(entry) * age)


def victims(
    entries: Iterable[StoredPrefix],
    tick: int,
    size: PrefixBytes,
    *,
    any_chunk: bool = False,
    keep: Collection[StoredPrefix] = (),
) -> list[StoredPrefix]:
    """The entries but ``keep``, the first to go first. Of equals the earlier one goes first."""
    return sorted(
        (each for each in entries if each not in keep),
        key=lambda each: (rank_of(each, any_chunk=any_chunk), worth(each, tick, size)),
    )


def needed_by(
    start: StoredPrefix, above: StoredPrefix | None, newest: StoredPrefix | None
) -> frozenset[StoredPrefix]:
    """What a request must not push out for a new prefix of its own.

    It started from ``start``, and ``newest`` is the most recently used prefix that extends
    ``start`` and that the new prefix does not extend: if this is a side request, such as one for
    a title, both are the conversation that it came from. ``above`` is the longest one that begins
    the new prefix, often of the same request. An answer right behind ``start`` is not kept for
    its sake: that is how a conversation whose template rewrites answers leaves them behind.
    """
    kept = {start}
    if above is not None:
        kept.add(above)
    if newest is not None and not (newest.kind is PrefixKind.END and newest.above is start):
        kept.add(newest)
    return frozenset(each for each in kept if not each.kind.is_spare)
