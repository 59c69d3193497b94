"""What the host does in a step of decoding, between one step's numbers and the next launch.

    python benchmarks/host.py [--sequences 1,16] [--rows 1] [--steps 2000] [--temperature 0]
                              [--profile]

A small model on the CPU; its steps are captured once and then do nothing, so that planning, filling
buffers, reading results, committing and sending events are all that is left. Microseconds of the
engine's thread a step, others not counted.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar
from unittest.mock import patch

import torch

from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.bundled import bundled_model
from kinfolk.engine.engine import Engine
from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.engine.outputs import DeviceOutputs
from kinfolk.registry import Registry
from kinfolk.sched.events import Event, Finished
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import Request, Sampling
from kinfolk.settings import load_settings
from kinfolk.spec.random_drafts import RandomDrafts

T = TypeVar("T")
PROMPT, WARM_UP = 32, 100


class Still:
    """A graph stand-in: runs a body once; each replay gives the same outputs.

    The body runs on padding, which reads memory that no step has written. What it computes can be
    not finite, which would end every request, so a step's packed outputs are replaced.
    """

    def capture(self, body: Callable[[], T]) -> Callable[[], T]:
        result = body()
        if isinstance(result, DeviceOutputs):
            accept_first_rows(result)
        return lambda: result


def accept_first_rows(outputs: DeviceOutputs) -> None:
    """Let each sequence be finite, keep its first row, reject its drafts and choose token 0."""
    flags = outputs.sequences + 2 * outputs.sampled  # sound, finite, n_keep; see StepOutputs
    outputs.packed[:flags] = 1
    outputs.packed[flags:] = 0


def load(context: int) -> LoadedModel:
    """The model that comes with kinfolk."""
    settings = load_settings(device="cpu", dtype="f32", context=context, slots=16, graphs="on")
    registry = Registry.discover(settings, reserved_commands=BUILT_IN.keys())
    return load_model(bundled_model(registry), settings, registry)


def measure(
    loaded: LoadedModel,
    sequences: int,
    steps: int,
    sampling: Sampling,
    profile: cProfile.Profile | None = None,
    *,
    overlap: bool = True,
    rows: int = 1,
) -> float:
    """Microseconds of a step of so many sequences, after the first ones; all rows but one of each
    are drafts that are rejected."""
    limits = SchedulerLimits(
        slots=16,
        context=loaded.info.context,
        step_tokens=2048,
        vocabulary=loaded.info.vocabulary,
        overlap=overlap,
        max_draft=rows - 1,
    )
    drafter = RandomDrafts(loaded.info.vocabulary) if rows > 1 else None
    ended, errors, times = threading.Semaphore(0), [], []

    def listen(event: Event) -> None:
        """Called on the engine's thread, once a step for each sequence."""
        if isinstance(event, Finished):
            errors.extend([event.error] if event.error else [])
            ended.release()
        elif event.request_id == "0":
            times.append(time.thread_time())
            if profile is not None and len(times) == WARM_UP:
                profile.enable()

    with (
        patch("kinfolk.engine.model_runner.capture_for", lambda device: Still()),
        Engine(loaded, limits, drafter) as engine,
    ):
        for number in range(sequences):
            prompt = tuple(range(1, PROMPT + 1))
            request = Request(str(number), prompt, steps + WARM_UP, sampling)
            engine.submit(request, listen)
        for _ in range(sequences):
            ended.acquire()
    if errors:
        raise SystemExit(f"error: a request has failed: {errors[0]}")
    # The last ones are without those that have ended.
    last = WARM_UP + steps - sequences
    return (times[last] - times[WARM_UP]) / (last - WARM_UP) * 1e6


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--sequences", default="1,16")
    arguments.add_argument("--steps", type=int, default=2000)
    arguments.add_argument("--temperature", type=float, default=0.0)
    arguments.add_argument("--rows", type=int, default=1, help="of a sequence, but one drafted")
    arguments.add_argument("--profile", action="store_true")
    arguments.add_argument("--no-overlap", action="store_true", help="no step ahead of a result")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    loaded = load(PROMPT + WARM_UP + options.steps)
    sampling = Sampling(temperature=options.temperature, top_p=0.95 if options.temperature else 1.0)
    for sequences in map(int, options.sequences.split(",")):
        profile = cProfile.Profile() if options.profile else None
        found = measure(
            loaded,
            sequences,
            options.steps,
            sampling,
            profile,
            overlap=not options.no_overlap,
            rows=options.rows,
        )
        sys.stdout.write(f"{sequences:3d} sequences: {found:7.1f} us a step\n")
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(35)


if __name__ == "__main__":
    main()
