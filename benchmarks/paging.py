"""What a step costs whose sequence is longer than its budget: ``--kvflash`` against everything on
the device.

    kinfolk synth qwen3.5-27b FILE
    python benchmarks/paging.py --model FILE [--device NAME] [--json FILE] [--read]

Rows of the result, for one sequence and several, for each format of keys and values:

step      a token of decoding at the whole context, with the budget; against the same pool with as
          many positions as such a step attends to, all of them on the device
full      the same without a budget, where the device has room for all positions
choosing  every 64 tokens the most exchanges that a choice makes: the host's time, and what was
          captured, allocated and waited for meanwhile
leaving   without a scorer: the host's time for each chunk that leaves
memory    the most that was allocated on the device, at 8K and at the whole context
reading   8192 tokens of a prompt behind other positions, with the budget and without

Long contexts are not read: **the forward of long slices is left out** (a policy answers
``build_graph``), so keys and values of those positions are zeros and answers mean nothing. All else
is done: chunks are planned, mapped, saved, evicted and loaded. What is timed is computed. With
``--read`` a prompt of the whole context is read too, once, with the budget. At full size most of
the time goes into pinning host memory: 64 GiB for four sequences with bf16. ``--codecs`` and
``--sequences`` take parts of the rows.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from resume import opened

from kinfolk import hookimpl
from kinfolk.engine.buckets import MIXED_ROWS
from kinfolk.engine.engine import Engine
from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.engine.sizing import GIB, host_memory
from kinfolk.errors import CapacityError, SettingsError
from kinfolk.hooks import HookProvider
from kinfolk.model_api import Forward, GraphShape, Model, StepBatch, StepFn
from kinfolk.registry import Registry
from kinfolk.sched.events import Emitted, Finished
from kinfolk.sched.request import Request
from kinfolk.score_api import ChunkQuery, Scores
from kinfolk.settings import Settings, load_settings
from kinfolk.state.geometry import chunks_for
from kinfolk.state.host_rows import HostLayout
from kinfolk.types import CHUNK_POSITIONS

COMPUTED_ROWS = {"cpu": 64, "cuda": MIXED_ROWS[-1]}
"""Steps of at most so many rows are always computed; on a GPU those that are captured."""

WARM_TOKENS = 8
"""Tokens of an answer before those that are timed."""

HOST_SHARE = 0.8
"""Part of the host's free memory that chunks may use beside a GPU."""

COUNTERS = ("steps", "waits", "captures", "allocations", "kvflash_evictions", "kvflash_recalls")
HOST = ("kvflash_scoring_us", "kvflash_choosing_us", "kvflash_moving_us")

Row = dict[str, Any]

say = sys.stdout.write


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--context", type=int, default=2**18)
    parser.add_argument("--budget", type=int, default=16384)
    parser.add_argument("--burst", type=int, default=32, help="most exchanges of a choice")
    parser.add_argument("--short", type=int, default=8192, help="the shorter context of memory")
    parser.add_argument("--tokens", type=int, default=256, help="timed ones of an answer")
    parser.add_argument("--chunk", type=int, default=8192, help="tokens that reading computes")
    parser.add_argument("--depths", type=numbers, default=(0, 2**16, 2**17))
    parser.add_argument("--sequences", type=numbers, default=(1, 4))
    parser.add_argument("--codecs", type=lambda text: text.split(","), default=["bf16", "q8_0"])
    parser.add_argument("--host", type=float, help="GiB of host memory for chunks")
    parser.add_argument("--read", action="store_true", help="read a prompt of the whole context")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for row in measured(options):
        say(json.dumps(row) + "\n")
        sys.stdout.flush()
        rows.append(row)
    if options.json:
        result = {"options": {k: str(v) for k, v in vars(options).items()}, "rows": rows}
        options.json.write_text(json.dumps(result | machine(options), indent=1) + "\n")


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def machine(options: argparse.Namespace) -> Row:
    cuda = torch.cuda.is_available() and options.device != "cpu"
    name = torch.cuda.get_device_name() if cuda else "cpu"
    return {"machine": name, "torch": torch.__version__, "taken": time.strftime("%Y%m%dT%H%M%SZ")}


def measured(options: argparse.Namespace) -> Iterator[Row]:
    """The rows; one that cannot be taken says why. Nothing of a model is left for the next one."""
    cuda = options.device != "cpu" and torch.cuda.is_available()
    host = options.host or (round(HOST_SHARE * host_memory() / GIB, 3) if cuda else None)
    for number, codec in enumerate(options.codecs):
        paging = {
            "kv_codec": codec,
            "slots": max(options.sequences),
            "kvflash": options.budget,
            "kvflash_burst": options.burst,
            "kvflash_host": host,
        }
        yield from paged_rows(options, paging, first=number == 0)
        yield from chosen_rows(options, paging)
        yield from full_rows(options, codec, first=number == 0)


def paged_rows(options: argparse.Namespace, paging: Row, *, first: bool) -> Iterator[Row]:
    with bench(options, kvflash_policy="lru", **paging) as paged:
        yield from steps(paged, options)
        yield leaving(paged, options)
        if first:
            yield memory(paged, options)
            yield from readings(paged, options, "with the budget")
            if options.read:
                yield whole(paged, options)


def chosen_rows(options: argparse.Namespace, paging: Row) -> Iterator[Row]:
    with bench(options, Draws(), kvflash_policy="lru", **paging) as paged:
        yield {"scorer": "drawn", **choosing(paged, options)}
    with bench(options, kvflash_policy="qk", **paging) as paged:
        yield {"scorer": "qk", **choosing(paged, options)}


def full_rows(options: argparse.Namespace, codec: str, *, first: bool) -> Iterator[Row]:
    try:
        with bench(options, kv_codec=codec, slots=1) as full:
            yield full_step(full, options)
            if first:
                yield from readings(full, options, "all on the device")
    except (CapacityError, SettingsError) as error:
        yield {"row": "full", "codec": codec, "skipped": str(error)}


# -- an engine whose prompts need not be read -----------------------------------------------------


class SkipsPrompts:
    """Leaves out the forward of steps with more than ``computed`` rows while it is ``on``."""

    def __init__(self, computed: int) -> None:
        self.on = False
        self._computed = computed

    @hookimpl
    def build_graph(self, model: Model, shape: GraphShape) -> StepFn | None:
        if shape.rows <= self._computed:
            return None

        def step(batch: StepBatch, view: Any) -> Forward:
            if not self.on:
                return model.forward(batch, view)
            return Forward(model.embed(batch.tokens), ())

        return step


class Draws:
    """Scores of which the best that are away are always worth an exchange: drawn anew for each
    length, far apart, on the device."""

    @hookimpl
    def score_chunks(self, query: ChunkQuery) -> Scores:
        generator = torch.Generator().manual_seed(query.length)
        values = torch.rand(query.chunks, generator=generator).mul_(12).exp_()
        if not torch.cuda.is_available():
            return Scores(values)
        return Scores(values.pin_memory().to("cuda", non_blocking=True))


@dataclass(frozen=True)
class Bench:
    """An engine whose model skips prompts."""

    loaded: LoadedModel
    engine: Engine
    skips: SkipsPrompts
    codec: str

    def text(self, tokens: int, seed: int) -> tuple[int, ...]:
        draw = torch.Generator().manual_seed(seed)
        words = torch.randint(0, self.loaded.info.vocabulary, (tokens,), generator=draw)
        return tuple(words.tolist())

    def has_host_room(self, sequences: int, positions: int) -> bool:
        """Whether the chunks of so many sequences fit the host's memory at once."""
        plan, layout = self.loaded.plan, HostLayout.of(self.loaded.plan)
        row = layout.block_pages[plan.windows.index(None)] * layout.page_bytes
        need = sequences * chunks_for(positions) * row
        source = self.loaded.source
        return source is not None and need <= source.ready.memory.paged


@contextmanager
def bench(
    options: argparse.Namespace, scorer: object | None = None, **asked: Any
) -> Iterator[Bench]:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # what is only cached would count as used
    settings: Settings = load_settings(
        device=options.device, context=options.context, draft="off", checkpoints=2, **asked
    )
    registry = Registry.discover(settings)
    loaded = load_model(options.model, settings, registry)
    skips = SkipsPrompts(COMPUTED_ROWS[loaded.device.type])
    providers = [HookProvider("benchmark", each) for each in (skips, scorer) if each is not None]
    loaded = replace(loaded, hooks=loaded.hooks.with_policies(providers))
    if loaded.residency is not None:
        scorers = (*loaded.hooks.asked("score_chunks"), *loaded.residency.scorers)
        loaded = replace(loaded, residency=replace(loaded.residency, scorers=scorers))
    with opened(loaded, settings) as engine:
        made = Bench(loaded, engine, skips, str(settings.kv_codec))
        # Kernels of long slices compile when a prompt is read, not where it is skipped.
        finished(engine, Request("warm", made.text(options.chunk, 1), 1, keep=False))
        yield made
    loaded.file.close()


# -- decoding -------------------------------------------------------------------------------------


def steps(paged: Bench, options: argparse.Namespace) -> Iterator[Row]:
    """The same step far behind the start of a text, and where all of it is on the device."""
    rules = paged.loaded.residency
    if rules is None:
        raise SettingsError(f"--budget {options.budget} is not less than --context")
    answer = options.tokens + WARM_TOKENS
    # As many positions as a paged step attends to, at the end of the answer.
    attended = rules.decoding * CHUNK_POSITIONS
    decoded(paged, 1, attended - answer, answer)  # kernels, captures
    for count in options.sequences:
        if not paged.has_host_room(count, options.context):
            reason = "the host has no room for the chunks of so many sequences (--host)"
            yield {"row": "step", "codec": paged.codec, "sequences": count, "skipped": reason}
            continue
        here = decoded(paged, count, attended - answer, answer)
        far = decoded(paged, count, options.context - answer, answer)
        yield {
            "row": "step",
            "codec": paged.codec,
            "sequences": count,
            "context": options.context,
            "attended": attended,
            "resident_ms": here["ms"],
            "paged_ms": far["ms"],
            "ratio": round(far["ms"] / here["ms"], 4),
            "paged_mean_ms": far["mean_ms"],
            **{name: far[name] for name in COUNTERS},
        }


def full_step(full: Bench, options: argparse.Namespace) -> Row:
    answer = options.tokens + WARM_TOKENS
    decoded(full, 1, options.chunk, answer)  # kernels, captures
    found = decoded(full, 1, options.context - answer, answer)
    return {"row": "full", "codec": full.codec, "sequences": 1, "ms": found["ms"]}


def leaving(paged: Bench, options: argparse.Namespace) -> Row:
    """Chunks that leave by recency, one for each chunk of the answer."""
    answer = options.tokens + WARM_TOKENS
    found = decoded(paged, 1, options.context - answer, answer)
    host = found["kvflash_moving_us"]
    return {
        "row": "leaving",
        "codec": paged.codec,
        "evictions": found["kvflash_evictions"],
        "host_us_an_eviction": round(host / max(1, found["kvflash_evictions"]), 2),
    }


def choosing(paged: Bench, options: argparse.Namespace) -> Row:
    """A choice of as many exchanges as there may be, every tau tokens."""
    answer = options.tokens + WARM_TOKENS
    found = decoded(paged, 1, options.context - answer, answer)
    rounds = max(1, found["kvflash_selections"])
    host = sum(found[name] for name in HOST)
    return {
        "row": "choosing",
        "codec": paged.codec,
        "ms": found["ms"],
        "mean_ms": found["mean_ms"],
        "rounds": found["kvflash_selections"],
        "exchanges_a_round": round(found["kvflash_recalls"] / rounds, 1),
        "host_us_a_round": round(host / rounds, 1),
        "host_share_of_decode": round(host / 1e6 / found["seconds"], 5),
        **{name: found[name] for name in (*COUNTERS, *HOST)},
    }


def decoded(bench: Bench, count: int, prompt: int, answer: int) -> Row:
    """Milliseconds of a step in which ``count`` sequences decode behind prompts that are not read,
    the median and the mean, and what was counted meanwhile. All of them hold after their first
    tokens, until the others have come so far."""
    engine = bench.engine
    runs = [Decoding() for _ in range(count)]
    names = [f"{prompt} {number}" for number in range(count)]
    with skipping(bench):
        for number, (name, run) in enumerate(zip(names, runs, strict=True)):
            request = Request(name, bench.text(prompt, number), answer, grant=WARM_TOKENS)
            engine.submit(request, run.event, lambda _, run=run: run.held.set())
        for run in runs:
            run.wait(run.held)
    before = engine.stats()
    for name in names:
        engine.grant(name, answer)
    for run in runs:
        run.wait(run.over)
    gained = {name: value - before[name] for name, value in engine.stats().items()}
    stamps = runs[-1].times[WARM_TOKENS:]
    gaps = [after - before for before, after in pairwise(stamps)]
    return gained | {
        "ms": round(1e3 * statistics.median(gaps), 4),
        "mean_ms": round(1e3 * statistics.mean(gaps), 4),
        "seconds": sum(gaps),
    }


class Decoding:
    """When the tokens of a request came. ``event`` is called on the engine's thread."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.held, self.over = threading.Event(), threading.Event()
        self._error: str | None = None

    def event(self, event: Any) -> None:
        if isinstance(event, Emitted):
            self.times.append(time.perf_counter())
            return
        self._error = event.error
        self.held.set()
        self.over.set()

    def wait(self, what: threading.Event) -> None:
        what.wait()
        if self._error is not None:
            raise SettingsError(self._error)


@contextmanager
def skipping(bench: Bench) -> Iterator[None]:
    bench.skips.on = True
    try:
        yield
    finally:
        bench.skips.on = False


# -- memory and reading ---------------------------------------------------------------------------


def memory(paged: Bench, options: argparse.Namespace) -> Row:
    """The most bytes of the device that were allocated at both lengths, of which the last part of
    the prompt is read."""
    if paged.loaded.device.type != "cuda":
        return {"row": "memory", "skipped": "the device has no counter of its memory"}
    peaks = {}
    for length in (options.short, options.context):
        torch.cuda.reset_peak_memory_stats()
        depth = max(0, length - options.chunk)
        read_behind(paged, "memory", depth, length - depth - 1)
        peaks[length] = torch.cuda.max_memory_allocated()
    short, long = peaks.values()
    return {
        "row": "memory",
        "bytes": {str(length): peak for length, peak in peaks.items()},
        "ratio": round(long / short, 5),
    }


def readings(bench: Bench, options: argparse.Namespace, which: str) -> Iterator[Row]:
    """Tokens a second of a piece of a prompt, behind positions that were not read."""
    for depth in options.depths:
        if depth + options.chunk < options.context:
            rate = read_behind(bench, which, depth, options.chunk)
            yield {"row": "reading", "which": which, "depth": depth, "tok_s": round(rate, 1)}


def read_behind(bench: Bench, which: str, depth: int, tokens: int) -> float:
    """Tokens a second, the faster of two times."""
    text = bench.text(depth, 7)
    if depth:
        request = Request(f"{which} to {depth}", (*text, 1), 1, checkpoints=(depth,))
        with skipping(bench):
            finished(bench.engine, request)
    rates = []
    for repeat in range(2):
        more = bench.text(tokens, 100 + repeat)
        request = Request(f"{which} {depth} {repeat}", (*text, *more), 1, keep=False)
        began = time.perf_counter()
        end = finished(bench.engine, request)
        if end.usage.reused != depth:
            raise SettingsError(f"{end.usage.reused} positions were reused instead of {depth}")
        rates.append(tokens / (time.perf_counter() - began))
    return max(rates)


def whole(paged: Bench, options: argparse.Namespace) -> Row:
    """A prompt of the whole context, read."""
    tokens = options.context - 1
    began = time.perf_counter()
    finished(paged.engine, Request("whole", paged.text(tokens, 3), 1, keep=False))
    seconds = time.perf_counter() - began
    rate = round(tokens / seconds, 1)
    return {"row": "whole", "tokens": tokens, "s": round(seconds, 2), "tok_s": rate}


def finished(engine: Engine, request: Request) -> Finished:
    *_, end = engine.submit(request)
    assert isinstance(end, Finished)
    if end.error is not None:
        raise SettingsError(end.error)
    return end


if __name__ == "__main__":
    main()
