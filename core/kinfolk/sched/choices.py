"""Several answers to one prompt: one request computes it, the others start from its state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from kinfolk.sched.request import Sequence
from kinfolk.state.prefix import DropReason, PrefixCache
from kinfolk.state.stored_prefix import PrefixKind


@dataclass(slots=True)
class Group:
    """Requests with the prompt of ``leader``, which computes it.

    ``waiting`` wait for that, ``queued`` (ids) are in line for a slot, ``missing`` have not been
    submitted yet.
    """

    leader: Sequence
    missing: int
    waiting: list[Sequence] = field(default_factory=list)
    queued: set[str] = field(default_factory=set)
    computed: bool = False
    leader_ended: bool = False


class Choices:
    """Keeps followers out of the line until the prompt of their leader is computed.

    They then start from a checkpoint behind all of the prompt but its last token, which is dropped
    when the last of them has started. A leader that ends before is replaced by the first follower.
    Without room for a checkpoint they compute their prompt like any request, from whatever prefix
    is stored. ``room_changed`` is called when a checkpoint was dropped.
    """

    def __init__(self, prefixes: PrefixCache, room_changed: Callable[[], None]) -> None:
        self._prefixes = prefixes
        self._room_changed = room_changed
        self._groups: dict[str, Group] = {}

    def __len__(self) -> int:
        """Requests that wait for their leader."""
        return sum(len(group.waiting) for group in self._groups.values())

    def enter(self, sequence: Sequence) -> bool:
        """Whether a new request may get in line now; if not, :meth:`computed` or :meth:`ended` of
        another one returns it later."""
        request = sequence.request
        if request.followers and self._prefixes.capacity:
            # The id may be used again while answers to its old prompt still wait.
            self._groups.setdefault(request.id, Group(sequence, request.followers))
            return True
        group = self._group(sequence)
        if group is None or group.leader.request.prompt != request.prompt:
            return True
        group.missing = max(0, group.missing - 1)
        if group.computed:
            group.queued.add(request.id)
            return True
        group.waiting.append(sequence)
        return False

    def leads(self, sequence: Sequence) -> bool:
        """Whether others will start from the prompt that a request computes."""
        group = self._group(sequence)
        if group is None or group.leader is not sequence or group.computed:
            return False
        return bool(group.waiting or group.missing)

    def computed(self, sequence: Sequence) -> list[Sequence]:
        """The prompt of a request is in its state: those that may get in line now."""
        group = self._group(sequence)
        if group is None or group.leader is not sequence:
            return []
        released, group.waiting = group.waiting, []
        group.queued.update(each.request.id for each in released)
        group.computed = True
        self._close(sequence, group)
        return released

    def started(self, sequence: Sequence) -> None:
        """A request has got a slot."""
        group = self._group(sequence)
        if group is not None and sequence.request.id in group.queued:
            group.queued.remove(sequence.request.id)
            self._close(sequence, group)

    def ended(self, sequence: Sequence) -> list[Sequence]:
        """A request is over: those that may get in line now."""
        group = self._group(sequence)
        if group is None:
            return []
        group.queued.discard(sequence.request.id)
        group.waiting = [each for each in group.waiting if each is not sequence]
        if group.leader is sequence:
            if not group.computed and group.waiting:
                group.leader = group.waiting.pop(0)
                return [group.leader]
            group.leader_ended = True
        self._close(sequence, group)
        return []

    def _group(self, sequence: Sequence) -> Group | None:
        return self._groups.get(sequence.request.follows or sequence.request.id)

    def _close(self, sequence: Sequence, group: Group) -> None:
        """Forget a group of which nobody is left to start. Its checkpoint stays for those who have
        not been submitted yet: nothing goes before it when room is needed."""
        if group.waiting or group.queued or (group.missing and not group.leader_ended):
            return
        if not (group.computed or group.leader_ended):
            return
        del self._groups[sequence.request.follows or sequence.request.id]
        for tokens in (sequence.prompt, sequence.salted):
            if tokens is None or group.missing:
                continue
            entry = self._prefixes.at(tokens, len(tokens) - 1)
            if entry is not None and entry.kind is PrefixKind.CHOICES:
                self._prefixes.drop(entry, DropReason.CHOICES)
                self._room_changed()
