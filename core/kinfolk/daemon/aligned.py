"""Which requests make the next batch: those at the position of the one whose turn it is. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class BatchCandidate:
    """A request that may be served: its slot, its position and pending token (-1 = none), and how
    many tokens it may still emit."""

    slot: int
    position: int
    pending: int
    remaining: int


@dataclass(frozen=True, slots=True)
class AlignedBatch:
    """The chosen slots, all at ``position``, and what was seen on the way. ``blocked``: nobody
    else is where the first request is, and it is never overtaken. ``cursor`` is the slot at which
    the next rotation begins."""

    slots: tuple[int, ...] = ()
    position: int | None = None
    eligible: int = 0
    ineligible: int = 0
    buckets: int = 0
    singletons: int = 0
    blocked: bool = False
    cursor: int | None = None

    def __str__(self) -> str:
        chosen = ",".join(map(str, self.slots)) or "none"
        where = "" if self.position is None else f" position={self.position}"
        return (
            f"batch={len(self.slots)} slots={chosen}{where} eligible={self.eligible} "
            f"ineligible={self.ineligible} buckets={self.buckets} "
            f"singleton_buckets={self.singletons} blocked_by_front_singleton={int(self.blocked)}"
        )


def select(
    candidates: Sequence[BatchCandidate], most: int, slots: int, *, tail: bool = False
) -> AlignedBatch:
    """The batch of ``candidates``, which are in the order of their turns, of ``slots`` slots.
    ``tail`` takes only requests that may emit one token more."""
    if most < 2 or not candidates:
        return AlignedBatch()
    buckets: dict[int, list[BatchCandidate]] = {}
    for each in candidates:
        last = each.remaining == 1 if tail else each.remaining > 0
        if each.position > 0 and each.pending >= 0 and last:
            buckets.setdefault(each.position, []).append(each)
    eligible = sum(map(len, buckets.values()))
    seen = AlignedBatch(
        eligible=eligible,
        ineligible=len(candidates) - eligible,
        buckets=len(buckets),
        singletons=sum(len(bucket) == 1 for bucket in buckets.values()),
    )
    front = next(iter(buckets.values()), [])
    if len(front) < 2:
        return replace(seen, blocked=bool(front))
    chosen = tuple(each.slot for each in front[:most])
    cursor = (chosen[-1] + 1) % slots
    return replace(seen, slots=chosen, position=front[0].position, cursor=cursor)
