"""Overlap: whether the step after one that runs can be planned before its result is read."""

from __future__ import annotations

from collections.abc import Mapping

from kinfolk.sched.drafts import Drafts
from kinfolk.sched.paging import Paging
from kinfolk.sched.plan import ItemKind, StepPlan
from kinfolk.sched.request import Sequence


def goes_on(
    plan: StepPlan,
    alive: Mapping[str, Sequence],
    turns: int,
    drafts: Drafts,
    paging: Paging,
) -> list[Sequence] | None:
    """The sequences of the step after ``plan``, if it has the same ones, each with a row more;
    ``None`` if it has not, or something depends on what is read. ``turns``: sequences in turns."""
    if len(plan.items) != turns:
        return None
    sequences = []
    for item in plan.items:
        sequence = alive.get(item.request_id)
        if sequence is None or sequence.lease is not item.lease:
            return None
        if item.kind is not ItemKind.DECODE or item.budget < 2 or item.propose != "off":
            return None
        sequences.append(sequence)
    return sequences if drafts.overlaps(sequences) and paging.overlaps(sequences) else None
