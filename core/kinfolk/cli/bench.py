"""``kinfolk bench``: prefill and decode speed of a model, measured through the engine."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import click

from kinfolk.cli.console import ProgressBar, print_json, table
from kinfolk.cli.loading import Requirements, open_runtime, read_settings
from kinfolk.cli.options import (
    ENGINE,
    LOADING,
    json_option,
    model_argument,
    sampling_value,
    settings_options,
)
from kinfolk.errors import EngineError
from kinfolk.version import __version__

if TYPE_CHECKING:
    from kinfolk.engine.runtime import Runtime
    from kinfolk.sched.events import Event
    from kinfolk.sched.request import Request


@dataclass(frozen=True, slots=True)
class Workload:
    """``sequences`` concurrent prompts of ``prompt`` tokens, each answered with ``generate``
    tokens.

    Every decode step of a sequence has ``rows`` rows; all but the first are random drafts, which
    are rejected.
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
    last measured token, and the most steps of a sequence in the latter."""

    prompt: float
    decode: float
    steps: int


@click.command(
    epilog="""\b
Examples:
  kinfolk bench -m model.gguf
  kinfolk bench -m model.gguf --prompt 2048 --generate 128 --repeats 5 --json
  kinfolk bench -m model.gguf --prompt 128 --sequences 16
  kinfolk bench -m model.gguf --prompt 32768 --temperature 0.8 --top-p 0.95
  kinfolk bench -m model.gguf --rows 16"""
)
@model_argument
@click.option(
    "--prompt",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Tokens of a prompt.",
)
@click.option(
    "--generate",
    type=click.IntRange(min=2),
    default=128,
    show_default=True,
    help="Tokens of an answer.",
)
@click.option(
    "--sequences",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Sequences that run at once.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    help="Measured repeats.",
)
@sampling_value("temperature", default=0.0, show_default=True, help="0 = greedy.")
@sampling_value("top_p", default=1.0, show_default=True, help="1 = all tokens.")
@click.option(
    "--rows",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Rows of a sequence in a step; all but one are random drafts.",
)
@json_option
@settings_options(*LOADING, *ENGINE)
@click.pass_context
def bench(
    ctx: click.Context,
    /,
    model: str | None,
    prompt: int,
    generate: int,
    sequences: int,
    repeats: int,
    temperature: float,
    top_p: float,
    rows: int,
    as_json: bool,
    **rest: Any,
) -> None:
    """Measure the model in FILE, or the bundled one: the median speed of several repeats.

    Every sequence of every repeat has its own random prompt, so no prefix is reused; end-of-text
    tokens do not end an answer. The prompt's time ends when the first token is on the host. A
    warm-up repeat is not counted.
    """
    work = Workload(prompt, generate, sequences, temperature, top_p, rows)
    drafts = {} if rows == 1 else {"drafter": "random", "draft_tokens": rows - 1}
    needed = prompt + work.max_new
    settings = read_settings(ctx, slots=sequences, checkpoints=0, context=needed, **drafts)
    need = Requirements(positions=needed, what=f"--prompt {prompt} with --generate {generate}")
    with open_runtime(settings, model, need) as runtime:
        runs = []
        with ProgressBar("measuring") as progress:
            for repeat in range(repeats + 1):
                runs.append(measure(runtime, work, seed=repeat))
                progress(repeat + 1, repeats + 1, "")
        report = _report(runtime, work, runs[1:])
    if as_json:
        print_json(report)
    else:
        click.echo(_as_text(report))


def measure(runtime: Runtime, work: Workload, seed: int) -> Run:
    """Run one repeat. Raises :class:`EngineError` if a request fails."""
    inbox: SimpleQueue[Event] = SimpleQueue()
    requests = [_request(runtime, work, seed, number) for number in range(work.sequences)]
    started = time.perf_counter()
    for request in requests:
        runtime.engine.submit(request, inbox.put)
    return watch(inbox.get, work, started)


def watch(next_event: Callable[[], Event], work: Workload, started: float) -> Run:
    """Take the time of one repeat, begun at ``started``, from its events, until all have ended."""
    from kinfolk.sched.events import Finished

    waiting = work.sequences
    emitted: dict[str, int] = {}
    steps: dict[str, int] = {}
    first = last = started
    while waiting:
        event = next_event()
        now, request = time.perf_counter(), event.request_id
        if isinstance(event, Finished):
            waiting -= 1
            if event.usage.emitted != work.max_new:
                raise EngineError(event.error or "a request ended too early")
            continue
        if request not in emitted:
            first = last = now
            emitted[request] = steps[request] = 0
        elif emitted[request] < work.generate:
            last = now
            steps[request] += 1
        emitted[request] += len(event.tokens)
    return Run(first - started, last - first, max(steps.values()))


def _request(runtime: Runtime, work: Workload, seed: int, number: int) -> Request:
    import random

    from kinfolk.sched.request import Request, Sampling

    source = random.Random(f"{seed} {number}")
    vocabulary = runtime.info.vocabulary
    return Request(
        id=f"bench-{seed}-{number}",
        prompt=tuple(source.randrange(vocabulary) for _ in range(work.prompt)),
        max_new=work.max_new,
        sampling=Sampling(temperature=work.temperature, top_p=work.top_p, seed=number),
    )


def _report(runtime: Runtime, work: Workload, runs: list[Run]) -> dict[str, Any]:
    import torch

    loaded = runtime.loaded
    device = loaded.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    prompts = [work.sequences * work.prompt / run.prompt for run in runs]
    decodes = [work.sequences * (work.generate - 1) / run.decode for run in runs]
    return {
        "model": runtime.name,
        "file": str(loaded.file.path),
        "bytes": loaded.file.inventory.nbytes,
        "workload": asdict(work),
        "repeats": len(runs),
        "prompt_tokens_per_second": round(statistics.median(prompts), 2),
        "generate_tokens_per_second": round(statistics.median(decodes), 2),
        "first_token_seconds": round(statistics.median(run.prompt for run in runs), 4),
        "step_milliseconds": round(
            statistics.median(1e3 * run.decode / max(1, run.steps) for run in runs), 4
        ),
        "runs": [asdict(run) for run in runs],
        "engine": runtime.engine.stats(),
        "uncapturable_ops": runtime.engine.uncapturable_ops(),
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


def _as_text(report: dict[str, Any]) -> str:
    work, machine = report["workload"], report["machine"]
    rows = [
        ("model", report["model"]),
        ("machine", f"{machine['name']} ({machine['device']}, {machine['dtype']})"),
        ("work", f"{work['sequences']} x ({work['prompt']} + {work['generate']}) tokens"),
        ("prompt", f"{report['prompt_tokens_per_second']} tok/s"),
        ("generate", f"{report['generate_tokens_per_second']} tok/s"),
        ("first token", f"{report['first_token_seconds']} s"),
        ("step", f"{report['step_milliseconds']} ms, {work['rows']} rows per sequence"),
        ("steps", _engine_counters(report["engine"])),
        *((f"no graph: {name}", why) for name, why in report["uncapturable_ops"].items()),
    ]
    return table(rows)


def _engine_counters(stats: dict[str, int]) -> str:
    names = ("steps", "replays", "eager_steps", "captures", "uploads", "waits", "allocations")
    return ", ".join(f"{stats[name]} {name.replace('_', ' ')}" for name in names)
