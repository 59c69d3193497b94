"""Engines of ``benchmarks/paging.py``: prompts are skipped, weights are read once, and steps are
timed by the tokens that come."""

from __future__ import annotations

import gc
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from resume import opened

from kinfolk import hookimpl
from kinfolk.engine.buckets import MIXED_ROWS
from kinfolk.engine.engine import Engine
from kinfolk.engine.loading import LoadedModel, SharedWeights, load_model
from kinfolk.engine.memory import WEIGHTS
from kinfolk.errors import SettingsError
from kinfolk.hooks import HookProvider
from kinfolk.model_api import Forward, GraphShape, Model, StepBatch, StepFn
from kinfolk.registry import Registry
from kinfolk.sched.events import Emitted, Finished
from kinfolk.sched.request import Request
from kinfolk.score_api import ChunkQuery, Scores
from kinfolk.settings import Settings, load_settings
from kinfolk.state.geometry import chunks_for
from kinfolk.state.host_rows import HostLayout

COMPUTED_ROWS = {"cpu": 64, "cuda": MIXED_ROWS[-1]}
"""Steps of at most so many rows are always computed; on a GPU those that are captured."""

WARM_TOKENS = 8
"""Tokens of an answer before those that are timed."""

Row = dict[str, Any]


class EngineKind(NamedTuple):
    """What an engine of the benchmark is opened with; without a ``scorer`` it has no budget:
    ``lru``, ``drawn`` (scores of which many exchanges follow) or ``qk``."""

    codec: str
    slots: int
    scorer: str = ""


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

    def __init__(self, device: torch.device, chunks: int) -> None:
        self._device = device
        self._values = torch.empty(chunks, pin_memory=device.type == "cuda")

    @hookimpl
    def score_chunks(self, query: ChunkQuery) -> Scores:
        generator = torch.Generator().manual_seed(query.length)
        # The copy of the round before was over many steps ago.
        values = self._values[: query.chunks].uniform_(generator=generator).mul_(12).exp_()
        return Scores(values.to(self._device, non_blocking=True))


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


class OneFile:
    """A model file, whose weights are read once for all engines. At most one engine is open."""

    def __init__(self, path: Path, device: str) -> None:
        self._path, self._device = path, device
        self._shared, self._there = SharedWeights(), 0
        self._form: dict[str, str] = {}

    @contextmanager
    def loaded(self, kind: EngineKind, **asked: Any) -> Iterator[tuple[LoadedModel, Settings]]:
        """The model for an engine of a kind."""
        policy = {"kvflash_policy": "qk" if kind.scorer == "qk" else "lru"} if kind.scorer else {}
        options = {"draft": "off", "checkpoints": 2, **policy, **self._form, **asked}
        settings = load_settings(
            device=self._device, kv_codec=kind.codec, slots=kind.slots, **options
        )
        loaded = self._load(settings)
        try:
            yield loaded, settings
        finally:
            loaded.file.close()

    @contextmanager
    def opened(self, kind: EngineKind, warm: int, **asked: Any) -> Iterator[Bench]:
        """``warm``: tokens of a prompt that is read first, so that no kernel compiles later."""
        with self.loaded(kind, **asked) as (loaded, settings):
            skips = SkipsPrompts(COMPUTED_ROWS[loaded.device.type])
            hooks: list[object] = [skips]
            if kind.scorer == "drawn":
                hooks.append(Draws(loaded.device, chunks_for(loaded.limits.context)))
            loaded = with_hooks(loaded, hooks)
            with opened(loaded, settings) as engine:
                made = Bench(loaded, engine, skips, kind.codec)
                finished(engine, Request("warm", made.text(warm, 1), 1, keep=False))
                yield made

    def free(self) -> None:
        """Nobody needs the weights for now."""
        self._shared.free()
        self._there = 0

    def _load(self, settings: Settings) -> LoadedModel:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # what is only cached would count as used
        registry = Registry.discover(settings)
        loaded = load_model(self._path, settings, registry, shared=self._shared, there=self._there)
        assert loaded.source is not None
        ready = loaded.source.ready
        self._form, self._there = {"weights": ready.form}, ready.memory.parts[WEIGHTS]
        return loaded


def with_hooks(loaded: LoadedModel, hooks: list[object]) -> LoadedModel:
    """The model with hooks that are asked first."""
    providers = [HookProvider("benchmark", each) for each in hooks]
    loaded = replace(loaded, hooks=loaded.hooks.with_policies(providers))
    if loaded.residency is None:
        return loaded
    scorers = (*loaded.hooks.asked("score_chunks"), *loaded.residency.scorers)
    return replace(loaded, residency=replace(loaded.residency, scorers=scorers))


# -- decoding -------------------------------------------------------------------------------------


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
    if gained["steps"] > 1.5 * answer:
        raise SettingsError(
            f"{count} sequences of {prompt + answer} positions did not run at once: "
            f"{gained['steps']} steps for {answer} tokens of each; the device has no room"
        )
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


# -- reading --------------------------------------------------------------------------------------


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


def finished(engine: Engine, request: Request) -> Finished:
    *_, end = engine.submit(request)
    assert isinstance(end, Finished)
    if end.error is not None:
        raise SettingsError(end.error)
    return end


# -- memory ---------------------------------------------------------------------------------------


def forget_peak(device: torch.device) -> None:
    """From now on :func:`peak_bytes` counts anew."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device: torch.device) -> int:
    """The most bytes that were allocated on a GPU; on a CPU, that the process had in memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (each for each in lines if each.startswith("VmHWM"))
    return 1024 * int(line.split()[1])
