"""The host's time of a decoding step, between the results of one step and the next launch.

    python benchmarks/host.py [--sequences 1,16] [--rows 1] [--steps 2000] [--temperature 0]
                              [--profile] [--prompt ROWS]

A small model runs on the CPU. Its captured steps do nothing when replayed, so the rest is measured:
planning, filling buffers, reading results, committing and sending events. Prints microseconds of
the engine's thread per step, without other threads.

With ``--prompt`` instead: a prompt of so many rows, launch by launch, with the Triton back ends of
all ops and kernels that do nothing. Microseconds to make its inputs, of its forward, and of one of
its launches, which the forward's time leaves out; the median each.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any, TypeVar
from unittest.mock import patch

import torch

from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.bundled import bundled_model
from kinfolk.engine.engine import Engine
from kinfolk.engine.input_batch import build_input_batch
from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.engine.outputs import DeviceOutputs
from kinfolk.ops.builtin import OP_BACKENDS
from kinfolk.registry import Registry
from kinfolk.sched.events import Event, Finished
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import Item, ItemKind
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


class StillKernel:
    """A compiled kernel that does nothing, with the arguments of another one."""

    do_not_specialize = ()

    def __init__(self, kernel: Any) -> None:
        self.arg_names = kernel.arg_names

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., StillKernel]:
        return lambda *arguments, **named: self


def load(context: int, **changed: str) -> LoadedModel:
    """Load the bundled model."""
    fixed = {"device": "cpu", "dtype": "f32", "context": context, "slots": 16, "graphs": "on"}
    settings = load_settings(**(fixed | changed))
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
    """Microseconds of a step of ``sequences`` sequences, after ``WARM_UP`` steps; all rows of a
    sequence but one are rejected drafts."""
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
    # In the last steps some sequences have ended already.
    last = WARM_UP + steps - sequences
    return (times[last] - times[WARM_UP]) / (last - WARM_UP) * 1e6


def measure_prompt(rows: int, rounds: int) -> tuple[float, float, float, int]:
    """Microseconds of inputs, forward and one launch, and the number of launches."""
    os.environ["TRITON_INTERPRET"] = "1"  # the back ends then take tensors of the CPU
    ops = sorted({backend.op for backend in OP_BACKENDS if backend.name == "triton"})
    op = ",".join(f"{name}=triton" for name in ops)
    loaded = load(rows + 1, weights="packed", graphs="off", op=op)
    from kinfolk_kernels.launch import Launch

    kv_cache, state = loaded.new_state()
    lease = kv_cache.open(rows + 1)
    kv_cache.tables.extend(lease, rows)
    state.apply(kv_cache.take_operations())
    item = Item(lease, "", ItemKind.PREFILL, tuple(range(1, rows + 1)), 0)
    step = build_input_batch([item], state).batch

    def forward() -> None:
        hidden = loaded.model.forward(step, state).hidden
        loaded.model.head(hidden[step.logit_rows])

    launches: list[Launch] = []
    with (
        torch.inference_mode(),
        patch.object(Launch, "run", lambda launch: launches.append(launch)),
    ):
        forward()
    still = {id(each.kernel): StillKernel(each.kernel) for each in launches}
    launches = [replace(each, kernel=still[id(each.kernel)]) for each in launches]

    def launch_all() -> None:
        for each in launches:
            each.run()

    with torch.inference_mode(), patch.object(Launch, "run", lambda launch: None):
        inputs = _microseconds(lambda: build_input_batch([item], state), rounds)
        whole = _microseconds(forward, rounds)
    return inputs, whole, _microseconds(launch_all, rounds) / len(launches), len(launches)


def _microseconds(work: Callable[[], object], rounds: int) -> float:
    """The median of a thread's time, after some rounds that do not count."""
    times = []
    for number in range(rounds + 20):
        start = time.thread_time_ns()
        work()
        if number >= 20:
            times.append(time.thread_time_ns() - start)
    return median(times) / 1e3


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--sequences", default="1,16")
    arguments.add_argument("--steps", type=int, default=2000)
    arguments.add_argument("--temperature", type=float, default=0.0)
    arguments.add_argument("--rows", type=int, default=1, help="of a sequence, but one drafted")
    arguments.add_argument("--profile", action="store_true")
    arguments.add_argument("--no-overlap", action="store_true", help="no step ahead of a result")
    arguments.add_argument("--prompt", type=int, metavar="ROWS", help="a prompt's forward instead")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    if options.prompt:
        inputs, whole, launch, count = measure_prompt(options.prompt, options.steps)
        sys.stdout.write(
            f"{options.prompt} rows: inputs {inputs:.1f} us, forward {whole:.1f} us and {count} "
            f"launches of {launch:.2f} us\n"
        )
        return
    loaded = load(PROMPT + WARM_UP + options.steps)
    sampling = Sampling(temperature=options.temperature, top_p=0.95 if options.temperature else 1.0)
    for sequences in map(int, options.sequences.split(",")):
        profile = cProfile.Profile() if options.profile else None
        microseconds = measure(
            loaded,
            sequences,
            options.steps,
            sampling,
            profile,
            overlap=not options.no_overlap,
            rows=options.rows,
        )
        sys.stdout.write(f"{sequences:3d} sequences: {microseconds:7.1f} us a step\n")
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(35)


if __name__ == "__main__":
    main()
