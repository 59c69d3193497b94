"""What the live page shows, as JSON. Numbers and names only: never a prompt or an answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kinfolk.sched.view import SequenceView
from kinfolk.server.speeds import RequestSpeeds, SpeedHistory
from kinfolk.types import CHUNK_POSITIONS
from kinfolk.version import __version__

if TYPE_CHECKING:
    from kinfolk.engine.overview import EngineOverview
    from kinfolk.server.service import Service

MOST_WAITING: Final = 100
"""Most waiting requests that are listed."""

Counters = Mapping[str, int]


def status_of(
    service: Service, overview: EngineOverview, speeds: RequestSpeeds, history: SpeedHistory
) -> dict[str, Any]:
    """The state of server and engine; the caller adds the time and the history of speeds."""
    counters = overview.counters
    return {
        "version": __version__,
        "model": _model(service),
        "server": {
            "started": service.created,
            "draining": service.draining,
            "in_flight": service.in_flight,
            "capacity": service.capacity,
            "answers": dict(sorted(service.finished.items())),
            "generated_tokens": service.generated,
        },
        "engine": {
            name: counters.get(name, 0)
            for name in ("steps", "replays", "eager_steps", "prefill_rows", "preemptions")
        }
        | {"parked": bool(counters.get("parked", 0))},
        **_requests(service, overview.requests, speeds),
        "cache": _cache(service, counters),
        "kvflash": _kvflash(counters),
        "speculation": _speculation(service, counters),
        "compression": None if service.compressor is None else dict(service.compressor.counts()),
        "recent": [answer.to_json() for answer in service.recent],
    }


def _model(service: Service) -> dict[str, Any]:
    info, facts = service.runtime.info, service.runtime.facts
    return {
        "name": service.options.model_name,
        "family": info.family,
        "architecture": info.architecture,
        "context": info.context,
        "device": facts.device,
    }


def _requests(
    service: Service, requests: Iterable[SequenceView], speeds: RequestSpeeds
) -> dict[str, Any]:
    """Those with a slot by their slots, and those that wait in the order in which they get one."""
    running: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    for each in requests:
        entry = {
            "id": each.request_id,
            "state": each.status.value,
            "priority": each.priority,
            "prompt": each.prompt,
            "reused": each.reused,
            "position": each.position,
            "generated": each.emitted,
            "left": each.remaining,
            "tokens_per_second": speeds.of(each),
            "accept_length": round(each.accept_length, 2) or None,
        }
        if each.slot is None:
            waiting.append(entry)
        else:
            running.append({"slot": each.slot, **entry})
    waiting.sort(key=lambda entry: entry["priority"])
    return {
        "slots": service.runtime.facts.slots,
        "running": sorted(running, key=lambda entry: entry["slot"]),
        "waiting": waiting[:MOST_WAITING],
        "waiting_requests": len(waiting),
    }


def _cache(service: Service, counters: Counters) -> dict[str, Any]:
    """Stored prefixes by place; ``written`` to host memory or disk and ``read`` from there are
    copies of all state, for paged sequences too."""
    facts = service.runtime.facts
    places = [
        _place("device", counters, "prefixes_device", "prefixes_device_bytes")
        | {"most_entries": facts.device_prefixes},
        _place("host", counters, "prefixes_host", "host_bytes")
        | {
            "most_bytes": facts.host_bytes,
            "written": _copies(counters, "saves", "saved_bytes"),
            "read": _copies(counters, "loads", "loaded_bytes"),
        },
    ]
    if facts.disk_bytes:
        places.append(
            _place("disk", counters, "disk_points", "disk_bytes")
            | {
                "most_bytes": facts.disk_bytes,
                "written": _copies(counters, "disk_spills", "disk_spilled_bytes"),
                "read": {"count": counters.get("disk_fetches", 0), "bytes": None},
            }
        )
    return {
        "lookups": counters.get("prefix_lookups", 0),
        "hits": counters.get("prefix_hits", 0),
        "tokens": counters.get("prefix_tokens", 0),
        "demotions": counters.get("demotions", 0),
        "places": places,
        "drops": _by_reason(counters, "prefix_drops_"),
        "disk_drops": _by_reason(counters, "disk_drops_"),
    }


def _place(name: str, counters: Counters, entries: str, nbytes: str) -> dict[str, Any]:
    return {
        "place": name,
        "entries": counters.get(entries, 0),
        "most_entries": None,
        "bytes": counters.get(nbytes, 0),
        "most_bytes": None,
        "hits": counters.get(f"prefix_hits_{name}", 0),
        "tokens": counters.get(f"prefix_tokens_{name}", 0),
        "written": None,
        "read": None,
    }


def _copies(counters: Counters, count: str, nbytes: str) -> dict[str, int]:
    return {"count": counters.get(count, 0), "bytes": counters.get(nbytes, 0)}


def _by_reason(counters: Counters, prefix: str) -> dict[str, int]:
    return {
        name.removeprefix(prefix): count
        for name, count in counters.items()
        if name.startswith(prefix)
    }


def _kvflash(counters: Counters) -> dict[str, int] | None:
    """Sequences that are longer than their budget; ``None`` without one."""
    budget = counters.get("kvflash_tokens", 0)
    if not budget:
        return None
    names = (
        *("tau", "scorers", "sequences", "resident_chunks", "away_chunks", "evictions"),
        *("recalls", "selections", "scorer_failures"),
    )
    found = {name: counters.get(f"kvflash_{name}", 0) for name in names}
    return {"budget_tokens": budget, "chunk_tokens": CHUNK_POSITIONS, **found}


def _speculation(service: Service, counters: Counters) -> dict[str, Any] | None:
    """Drafts of finished answers; ``None`` if nothing drafts."""
    drafters = service.runtime.facts.drafters
    if not drafters:
        return None
    drafts = service.drafts
    return {
        "drafters": list(drafters),
        "steps": drafts.steps,
        "drafted": drafts.drafted,
        "accepted": drafts.accepted,
        "accept_length": round(drafts.accept_length, 2) or None,
        "accept_rate": round(drafts.accept_rate, 3) if drafts.depth else None,
        "failures": counters.get("draft_failures", 0),
    }
