"""The host's time of a decoding step, between the results of one step and the next launch.

    python benchmarks/host.py [--sequences 1,16] [--rows 1] [--steps 2000] [--temperature 0]
                              [--profile] [--prompt ROWS]
    python benchmarks/host.py --http [--sequences 16,64] [--step MILLISECONDS] [--busy MILLISECONDS]
                                     [--rows 1] [--here]

A small model runs on the CPU. Its captured steps do nothing when replayed, so the rest is measured:
planning, filling buffers, reading results, committing and sending events. Prints microseconds of
the engine's thread per step, without other threads.

With ``--prompt`` instead: a prompt of so many rows, launch by launch, with the Triton back ends of
all ops and kernels that do nothing. Microseconds to make its inputs, of its forward, and of one of
its launches, which the forward's time leaves out; the median each.

With ``--http`` instead: as many streams of the server of ``kinfolk serve``, through real sockets,
read by a client in a process of its own. A step takes ``--step`` milliseconds on a device that is
simulated: the engine waits for it, without the interpreter's lock, as it waits for a GPU. To launch
it, the engine's thread computes for ``--busy`` milliseconds. Prints tokens a second of the engine
alone and through the server; the second must not be smaller. With ``--here`` the server is a thread
beside the engine's, with ``--profile`` its profile follows.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any, TypeVar
from unittest.mock import patch

import psutil
import torch

from kinfolk.cli.http_process import HttpProcess, prepare_message
from kinfolk.cli.http_streams import Address, play
from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.buckets import SEQUENCES
from kinfolk.engine.bundled import bundled_model
from kinfolk.engine.engine import Engine
from kinfolk.engine.input_batch import build_input_batch
from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.engine.outputs import DeviceOutputs, OutputReader, PendingCopy, StepOutputs
from kinfolk.engine.runtime import Runtime
from kinfolk.ops.builtin import OP_BACKENDS
from kinfolk.registry import Registry
from kinfolk.sched.events import Event, Finished
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.sched.request import Request, Sampling
from kinfolk.server.lifecycle import GracefulServer, bind
from kinfolk.server.options import ServerOptions
from kinfolk.server.service import Service
from kinfolk.settings import load_settings
from kinfolk.spec.random_drafts import RandomDrafts

T = TypeVar("T")
PROMPT, SHORT_PROMPT, WARM_UP = 32, 4, 100
ROUNDS = 4
LAUNCH = 50e-6
"""Seconds of Python for one launch, roughly."""


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
    fixed["draft"] = "off"
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
        loaded.model.logits(loaded.model.norm(hidden[step.logit_rows]))

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


class Device(Still):
    """A graph stand-in whose replays take their time, one after the other, as on a GPU."""

    def __init__(self, seconds: float, busy: float) -> None:
        self.seconds, self.busy = seconds, busy
        self._ends: deque[float] = deque()

    def capture(self, body: Callable[[], T]) -> Callable[[], T]:
        still = super().capture(body)

        def replay() -> T:
            ready = time.perf_counter() + self.busy
            while (now := time.perf_counter()) < ready:
                while time.perf_counter() < now + LAUNCH:
                    pass
                time.sleep(0)  # a launch gives the interpreter's lock to a thread that waits for it
            begun = max([time.perf_counter(), *self._ends])
            self._ends.append(begun + self.seconds)
            return still()

        return replay

    def wait(self) -> None:
        """Wait for the oldest replay that has not been waited for."""
        if self._ends:
            time.sleep(max(0.0, self._ends.popleft() - time.perf_counter()))


@contextmanager
def simulated(
    step: float, busy: float, slots: int, context: int, rows: int = 1
) -> Iterator[Runtime]:
    """The bundled model, with steps of decoding that take ``step`` seconds on a simulated device.

    The engine's thread computes for ``busy`` seconds to launch one, as for a step that is no replay
    of a graph. All ``rows`` of a sequence but one are drafts of the host, which are rejected: the
    model chooses token 0 each time, so the text repeats itself.
    """
    device, receive = Device(step, busy), OutputReader.receive

    def wait_and_receive(reader: OutputReader, copy: PendingCopy) -> StepOutputs:
        device.wait()
        return receive(reader, copy)

    drafts: dict[str, Any] = {"draft": "off"}
    if rows > 1:
        drafts = {"draft": "ngram", "draft_tokens": rows - 1, "draft_width": rows - 1}
    settings = load_settings(
        device="cpu",
        dtype="f32",
        context=context,
        slots=slots,
        graphs="on",
        checkpoints=0,
        **drafts,
    )
    registry = Registry.discover(settings, reserved_commands=BUILT_IN.keys())
    with (
        patch("kinfolk.engine.model_runner.capture_for", lambda kind: device),
        patch("kinfolk.engine.buckets.SEQUENCES", tuple(sorted({*SEQUENCES, slots}))),
        patch.object(OutputReader, "receive", wait_and_receive),
        Runtime.open(None, settings, registry) as runtime,
    ):
        yield runtime


@dataclass(frozen=True)
class Streams:
    """Streams that ran together: tokens a second while all of them ran; median seconds to the first
    token, and the median and the 99th percentile of the seconds between two tokens of a stream."""

    rate: float
    first: float
    gap: float
    late: float

    @classmethod
    def of(cls, rounds: list[list[Sequence[float]]]) -> Streams:
        """From the times of every token of every stream of several rounds."""
        rates, firsts, gaps = [], [], []
        for times in rounds:
            begun, over = max(each[0] for each in times), min(each[-1] for each in times)
            inside = sum(begun < moment <= over for each in times for moment in each)
            rates.append(inside / (over - begun))
            firsts += [each[0] for each in times]
            gaps += [after - before for each in times for before, after in pairwise(each)]
        gaps.sort()
        return cls(median(rates), median(firsts), median(gaps), gaps[len(gaps) * 99 // 100])


def measure_http(
    streams: int, step: float, busy: float, tokens: int, here: bool, profile: bool, rows: int = 1
) -> tuple[Streams, Streams, float]:
    """The engine alone, the server, and microseconds of the server for a token.

    ``here``: the server is in this process instead of its own.
    """
    with simulated(step, busy, streams, SHORT_PROMPT + tokens, rows) as runtime:
        alone = Streams.of(
            [play_alone(runtime, streams, tokens, seed) for seed in range(ROUNDS)][1:]
        )
        served = Served(runtime, streams, profile) if here else ServedApart(runtime, streams)
        with served:
            host, port = served.socket.getsockname()
            command = [sys.executable, __file__, "--client", f"http://{host}:{port}"]
            command += ["--sequences", str(streams), "--steps", str(tokens)]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    seconds = served.seconds / (ROUNDS * streams * tokens)
    return alone, Streams(*json.loads(done.stdout)), 1e6 * seconds


def play_alone(runtime: Runtime, streams: int, tokens: int, seed: int) -> list[Sequence[float]]:
    """The seconds to each token of each request, by the engine's events."""
    times: dict[str, list[float]] = {}
    ended = threading.Semaphore(0)

    def listen(event: Event) -> None:
        if isinstance(event, Finished):
            ended.release()
        else:
            times.setdefault(event.request_id, []).append(time.perf_counter() - started)

    started = time.perf_counter()
    for number in range(streams):
        prompt = tuple((seed * streams + number + place) % 256 for place in range(SHORT_PROMPT))
        runtime.engine.submit(Request(f"{seed}-{number}", prompt, tokens, Sampling()), listen)
    for _ in range(streams):
        ended.acquire()
    return list(times.values())


class Served(threading.Thread):
    """The server of a runtime in a thread of this process, as a program that embeds it has it.
    ``seconds`` is the time of the thread when it has ended."""

    def __init__(self, runtime: Runtime, slots: int, profile: bool) -> None:
        super().__init__(daemon=True)
        self.socket = bind("127.0.0.1", 0)
        self.server = GracefulServer(Service(runtime, ServerOptions("bundled"), slots))
        self.profile = cProfile.Profile() if profile else None
        self.seconds = 0.0

    def run(self) -> None:
        work = partial(self.server.run, [self.socket])
        if self.profile is None:
            work()
        else:
            self.profile.runcall(work)
        self.seconds = time.thread_time()

    def __enter__(self) -> Served:
        self.start()
        while not self.server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.join()
        self.socket.close()
        if self.profile is not None:
            pstats.Stats(self.profile).sort_stats("tottime").print_stats(35)


class ServedApart(HttpProcess):
    """The server of a runtime in a process of its own, as ``kinfolk serve`` has it. ``seconds`` is
    the time of the process, without its start."""

    def __init__(self, runtime: Runtime, slots: int) -> None:
        self.socket = bind("127.0.0.1", 0)
        prepare = prepare_message(runtime.loaded.file.path, load_settings(), tuple(BUILT_IN))
        super().__init__(self.socket, prepare)
        self.start(runtime, ServerOptions("bundled"), slots)
        self.started = self._time()
        self.seconds = 0.0

    def _time(self) -> float:
        times = psutil.Process(self.pid).cpu_times()
        return times.user + times.system

    def __exit__(self, *error: object) -> None:
        self.seconds = self._time() - self.started
        super().__exit__(*error)
        self.socket.close()


def client(url: str, streams: int, tokens: int) -> Streams:
    """The client of :func:`measure_http`; its first round does not count."""
    rounds = []
    for seed in range(ROUNDS):
        bodies = [
            {
                "prompt": [
                    (seed * streams + number + place) % 256 for place in range(SHORT_PROMPT)
                ],
                "max_tokens": tokens,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            for number in range(streams)
        ]
        answers = asyncio.run(play(Address.parse(url), bodies)).answers
        for answer in answers:
            if answer.error or answer.tokens != tokens:
                raise SystemExit(f"error: {answer.tokens} tokens: {answer.error}")
        rounds.append([answer.times for answer in answers])
    return Streams.of(rounds[1:])


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
    arguments.add_argument("--http", action="store_true", help="streams of the server instead")
    arguments.add_argument("--step", type=float, default=5.0, help="milliseconds, with --http")
    arguments.add_argument("--busy", type=float, default=0.0, help="milliseconds to launch a step")
    arguments.add_argument("--here", action="store_true", help="with --http: in one process")
    arguments.add_argument("--client", metavar="URL", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    if options.client:
        found = client(options.client, int(options.sequences), options.steps)
        sys.stdout.write(json.dumps(astuple(found)))
        return
    if options.http:
        for streams in map(int, options.sequences.split(",")):
            alone, served, cost = measure_http(
                streams,
                options.step / 1e3,
                options.busy / 1e3,
                options.steps,
                options.here,
                options.profile,
                options.rows,
            )
            sys.stdout.write(
                f"{streams} streams, steps of {options.step:g} ms; the server takes "
                f"{cost:.0f} us a token\n"
            )
            for name, each in (("engine", alone), ("HTTP", served)):
                sys.stdout.write(
                    f"  {name:6s} {each.rate:6.0f} tok/s ({each.rate / alone.rate:.3f}), first "
                    f"token {1e3 * each.first:.1f} ms, gap {1e3 * each.gap:.2f} ms, 99 % below "
                    f"{1e3 * each.late:.2f} ms\n"
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
