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
from typing import Final

from kinfolk.state.geometry import chunks_for
from kinfolk.state.stored_prefix import PrefixKind, StoredPrefix

YOUNG: Final = 9
"""Ticks of three requests: each looks up once and stores a fork and an answer."""


class Rank(IntEnum):
    """What a prefix is good for, the first to go first.

    SPARE      kept for further answers to a prompt, or a point of the grid of a long prompt from
               which nobody has started
    COVERED    its chunks can be shared from the prefix that extends it, if the family can start at
               any chunk
    BEHIND     its conversation has gone on from here, or from another place
    LIVE       a conversation is expected to go on from here
    SHARED     conversations went on from here in at least two ways, or began at this system prompt
    """

    SPARE = 0
    COVERED = 1
    BEHIND = 2
    LIVE = 3
    SHARED = 4


def rank_of(entry: StoredPrefix, *, any_chunk: bool) -> Rank:
    """``any_chunk``: whether a sequence may start from the first chunks of a checkpoint."""
    if entry.kind is PrefixKind.CHOICES or (entry.kind is PrefixKind.GRID and not entry.hits):
        return Rank.SPARE
    if entry.ways >= 2 or (entry.kind is PrefixKind.COMMON and entry.hits):
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
    kind: PrefixKind,
    start: StoredPrefix | None,
    above: StoredPrefix | None,
    newest: StoredPrefix | None,
    tick: int,
) -> frozenset[StoredPrefix]:
    """What a request must not push out for a new prefix of its own.

    - ``above``, the longest one that begins the new one: often it is of the same request. Nor does
      an answer push out the system prompt before it.
    - ``start``, from which the request started, and ``newest``, the most recently used prefix
      that extends it and that the new one does not extend. If this is a side request, they are the
      conversation that it came from. An answer right behind ``start`` may go: conversations
      whose templates rewrite answers leave them there.
    - What extends a common ``start`` and is expected to go on, for ``YOUNG`` ticks: clients ask for
      title, tags and follow-ups of a chat at once, and each is a new conversation.
    """
    kept = set()
    if above is not None:
        kept.add(above)
        if kind is PrefixKind.END:
            kept |= {each for each in above.path() if each.kind is PrefixKind.COMMON}
    if start is not None:
        kept.add(start)
        if start.kind is PrefixKind.COMMON:
            kept |= {each for each in start.all_below() if each.expected and _is_young(each, tick)}
        if newest is not None and not (newest.kind is PrefixKind.END and newest.above is start):
            kept.add(newest)
    return frozenset(each for each in kept if not each.kind.is_spare)


def _is_young(entry: StoredPrefix, tick: int) -> bool:
    return tick - entry.used <= YOUNG
