"""What a session says in words: lists of requests and slots, and how a request has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kinfolk.daemon.commands import Listing
from kinfolk.sched.events import Finished
from kinfolk.sched.view import SequenceView


def listing(
    what: Listing, views: Sequence[SequenceView], served: Mapping[str, int], slots: int
) -> str:
    """A line with the number of entries, and one for each. ``served`` has the ids on the wire of
    the session's own requests."""
    own = [view for view in views if view.request_id in served]
    if what is Listing.REQUESTS:
        lines = [_request(served[view.request_id], view) for view in own]
        return "\n".join([f"requests {len(own)}", *lines])
    owners = {view.slot - 1: view for view in views if view.slot is not None}
    return "\n".join([f"slots {slots}", *(_slot(n, owners.get(n), served) for n in range(slots))])


def _request(number: int, view: SequenceView) -> str:
    slot = "-" if view.slot is None else view.slot - 1
    return (
        f"req={number} slot={slot} status={view.status.value} remaining={view.remaining} "
        f"emitted={view.emitted} quantum={view.quantum or '-'} epoch={view.epoch or '-'}"
    )


def _slot(slot: int, view: SequenceView | None, served: Mapping[str, int]) -> str:
    if view is None:
        return f"slot={slot} free"
    if view.request_id not in served:
        return f"slot={slot} of another session"
    pending = -1 if view.pending is None else view.pending
    return (
        f"slot={slot} req={served[view.request_id]} status={view.status.value} "
        f"cur_pos={view.position} last_tok={pending}"
    )


def ending(number: int, event: Finished) -> str:
    """The status of a request that has ended."""
    if event.error is not None:
        return f"err {event.error}"
    usage = event.usage
    place = "" if usage.reused_from is None else f" from={usage.reused_from}"
    return (
        f"ok req={number} prompt={usage.prompt} reused={usage.reused}{place} gen={usage.emitted} "
        f"finish={event.reason.value}{'' if usage.exact else ' exact=no'}"
    )
