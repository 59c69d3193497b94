"""Preemption: a running request gives its place to one of higher priority, and goes on later.

Its state moves to host memory and comes back, so nothing is computed twice, and its tokens are
those that it would have emitted anyway.
"""

from __future__ import annotations

from collections.abc import Iterable

from kinfolk.sched.request import Sequence, Status
from kinfolk.state.checkpoint_store import CheckpointStore
from kinfolk.state.prefix import PrefixCache


class Preemption:
    """Takes sequences off the device between steps; ``count`` of them so far.

    What they keep in host memory is promised to them: stored prefixes make room for it, and never
    the other way round.
    """

    def __init__(self, store: CheckpointStore, prefixes: PrefixCache) -> None:
        self._store, self._prefixes = store, prefixes
        self.count = 0

    @staticmethod
    def victim(waiting: Sequence, running: Iterable[Sequence]) -> Sequence | None:
        """Of the running sequences with a lower priority than one that waits, the newest of the
        lowest; a held one keeps its slot."""
        lower = (
            each
            for each in running
            if each.request.priority > waiting.request.priority and each.status is not Status.HELD
        )
        return max(lower, key=lambda each: (each.request.priority, each.arrival), default=None)

    def preempt(self, sequence: Sequence) -> bool:
        """Move a sequence's state to host memory and end its lease; false, with nothing changed, if
        there is no room for it."""
        lease = sequence.leased
        if not self._prefixes.make_room_to_suspend(lease):
            return False
        sequence.kept = self._store.suspend(lease)
        sequence.lease = None
        sequence.status = Status.PREEMPTED
        # Proposals belong to the slot.
        sequence.proposed, sequence.proposed_tree, sequence.confidence = 0, False, ()
        self.count += 1
        return True

    def drop(self, sequence: Sequence) -> None:
        """A sequence has its state back, or will not need it any more."""
        if sequence.kept is not None:
            sequence.exact = sequence.kept.exact
            self._store.drop(sequence.kept)
            sequence.kept = None
