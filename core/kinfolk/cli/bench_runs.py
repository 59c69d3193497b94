"""Repeats of a workload on an engine, the time of each, and what every report of them says."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from kinfolk.errors import EngineError
from kinfolk.version import __version__

if TYPE_CHECKING:
    from kinfolk.engine.runtime import Runtime
    from kinfolk.sched.events import Event, Usage
    from kinfolk.sched.request import Request


@dataclass(frozen=True, slots=True)
class Workload:
    """``sequences`` concurrent prompts of ``prompt`` tokens, each answered with ``generate``
    tokens.

    Every decode step of a sequence has at most ``rows`` rows; all but the first are drafts. 1 = as
    many as its drafter likes.
    """

    prompt: int
    generate: int
    sequences: int
    temperature: float
    top_p: float = 1.0
    rows: int = 1

    @property
    def max_new(self) -> int:
        """Tokens to request. A step never has more rows than tokens left to emit, so the last steps
        are narrower; they come after the measured ``generate`` tokens."""
        return self.generate + self.rows - 1


@dataclass(frozen=True, slots=True)
class Run:
    """One repeat: seconds until all sequences have their first token, seconds from there to the
    last measured token, and the most steps of a sequence in the latter. ``firsts``: seconds to the
    first token of each sequence. ``tokens`` of all sequences were measured in ``lane_steps`` steps,
    a step of two sequences counted twice; a sequence's last step may go beyond ``generate``."""

    prompt: float
    decode: float
    steps: int
    firsts: tuple[float, ...] = field(default=(), compare=False)
    tokens: int = field(default=0, compare=False)
    lane_steps: int = field(default=0, compare=False)


def measure(
    runtime: Runtime,
    work: Workload,
    seed: int,
    *,
    draft: bool = True,
    ended: Callable[[Usage], object] = lambda usage: None,
) -> Run:
    """Run one repeat; without ``draft`` nothing is drafted for its requests. ``ended`` gets what
    each has used. Raises :class:`EngineError` if a request fails."""
    inbox: SimpleQueue[Event] = SimpleQueue()
    requests = [_request(runtime, work, seed, number, draft) for number in range(work.sequences)]
    started = time.perf_counter()
    for request in requests:
        runtime.engine.submit(request, inbox.put)
    return watch(inbox.get, work, started, ended)


def watch(
    next_event: Callable[[], Event],
    work: Workload,
    started: float,
    ended: Callable[[Usage], object] = lambda usage: None,
) -> Run:
    """Take the time of one repeat, begun at ``started``, from its events, until all have ended."""
    from kinfolk.sched.events import Finished

    waiting = work.sequences
    emitted: dict[str, int] = {}
    steps: dict[str, int] = {}
    firsts = []
    first = last = started
    tokens = 0
    while waiting:
        event = next_event()
        now, request = time.perf_counter(), event.request_id
        if isinstance(event, Finished):
            waiting -= 1
            if event.usage.emitted != work.max_new:
                raise EngineError(event.error or "a request ended too early")
            ended(event.usage)
            continue
        if request not in emitted:
            first = last = now
            firsts.append(now - started)
            emitted[request] = steps[request] = 0
        elif emitted[request] < work.generate:
            last = now
            steps[request] += 1
            tokens += len(event.tokens)
        emitted[request] += len(event.tokens)
    most, lane_steps = max(steps.values()), sum(steps.values())
    return Run(first - started, last - first, most, tuple(firsts), tokens, lane_steps)


def _request(runtime: Runtime, work: Workload, seed: int, number: int, draft: bool) -> Request:
    import random

    from kinfolk.sched.request import Request, Sampling

    source = random.Random(f"{seed} {number}")
    vocabulary = runtime.info.vocabulary
    return Request(
        id=f"bench-{seed}-{number}",
        prompt=tuple(source.randrange(vocabulary) for _ in range(work.prompt)),
        max_new=work.max_new,
        sampling=Sampling(
            temperature=work.temperature, top_p=work.top_p, seed=seed * work.sequences + number
        ),
        draft=draft,
        draft_width=work.rows - 1 or None,
    )


def step_milliseconds(runs: list[Run]) -> float:
    """The median time of a step."""
    return round(statistics.median(1e3 * run.decode / max(1, run.steps) for run in runs), 4)


def described(runtime: Runtime, work: Workload, repeats: int) -> dict[str, Any]:
    """What every report says: the model, the work, the machine and the versions."""
    import torch

    loaded = runtime.loaded
    device = loaded.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {
        "model": runtime.name,
        "file": str(loaded.file.path),
        "bytes": loaded.file.inventory.nbytes,
        "workload": asdict(work),
        "repeats": repeats,
        "machine": {
            "device": str(device),
            "name": name or platform.machine(),
            "dtype": str(loaded.dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "system": platform.platform(),
        },
        "versions": {
            "kinfolk": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    }


def description_lines(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The model, the machine and the work of a report, for a table."""
    work, machine = report["workload"], report["machine"]
    return [
        ("model", report["model"]),
        ("machine", f"{machine['name']} ({machine['device']}, {machine['dtype']})"),
        ("work", f"{work['sequences']} x ({work['prompt']} + {work['generate']}) tokens"),
    ]
