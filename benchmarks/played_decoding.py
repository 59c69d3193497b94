"""Decoding of the real engine with a played trace: what experts outside cost, beside the bars.

Used by ``residency.py bench``. A model is opened once for each budget, with swaps and without, and
every case runs there in an engine of its own: a run that captures, a run from the placement on that
warms the bays, and the timed runs. What is added is the time of a step less that of the same case
with all experts on the device. The device counts hits, records fetched and records read far; the
simulator counts the same on the steps that the device says it has run, and so tells the traffic of
decoding steps apart from that of prompts.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from expert_residency import (
    DECAY,
    GROUPS_SHARE,
    LANDED_SHARE,
    PAIRS_SHARE,
    DecayedCount,
    Numbers,
    Residency,
    Static,
    Traffic,
    predicted_seconds,
    walk,
)
from expert_traces import Trace
from results import kernels_hash
from resume import copy_rate
from traced_routes import Player, playing, with_traced_routes

from kinfolk.cli.bench_runs import Workload, measure
from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.buckets import MAX_FETCH_ROWS
from kinfolk.engine.engine import Engine
from kinfolk.engine.expert_plan import ExpertPlan
from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.engine.preparing import choose_device, prepare_model
from kinfolk.engine.runtime import scheduler_limits
from kinfolk.engine.sizing import GIB
from kinfolk.errors import KinfolkError
from kinfolk.model_api import ModelInfo
from kinfolk.nn.moe import LANDED_ROWS
from kinfolk.plans import Placement
from kinfolk.registry import Registry
from kinfolk.settings import Settings, load_settings
from kinfolk.spec.random_drafts import RandomDrafts

QWEN_35B = ("qwen35moe", 40 * 256)
"""Architecture and number of experts of the 35B-A3B."""

STEADY = {
    QWEN_35B: {25: 2.55, 50: 1.56, 75: 0.92},
    ("laguna", 39 * 256): {50: 1.9},
    ("gemma4", 30 * 128): {50: 2.2},
}
"""Bars in ms a token, by architecture and number of experts, and percent of them in bays: one
sequence, a sticky trace, bays that change. They are of 35B-A3B, Laguna-XS.2 and 26B-A4B, and of a
link of 55 GB/s."""

CARDS = {8: 3.2, 12: 2.2}
"""The same of the 35B-A3B by ``--memory``."""

MEMORY_CONTEXT = 8192

Row = dict[str, Any]
Draw = Callable[[str, int], Trace]
"""A trace of this kind for so many sequences."""


@dataclass(frozen=True, slots=True)
class Case:
    """A workload on a kind of trace. ``prompts``: what is compared is the time of its prompts, not
    that of a step of decoding."""

    name: str
    trace: str
    work: Workload
    prompts: bool = False


@dataclass(frozen=True, slots=True)
class Opening:
    """How a model is opened, and the cases that run then. ``budget``: ``all``, or a share or GiB of
    experts on the device; or what ``memory`` leaves, in GiB."""

    budget: str
    swap: str
    cases: tuple[Case, ...]
    memory: float | None = None

    @property
    def settings(self) -> dict[str, Any]:
        fixed: dict[str, Any] = {"expert_swap": self.swap, "op": "route=played"}
        if self.memory is None:
            return {**fixed, "expert_budget": self.budget}
        return {**fixed, "memory": self.memory, "context": MEMORY_CONTEXT, "slots": 1}

    def __str__(self) -> str:
        where = self.budget if self.memory is None else f"--memory {self.memory:g}"
        return f"{where}, swap {self.swap}"


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a model as its plan has them; layers without experts are left out."""

    layers: int
    experts: int
    top_k: int

    @classmethod
    def of(cls, path: Path, settings: Settings, registry: Registry) -> Experts:
        """Raises :class:`ValueError` for a model without experts, or whose layers differ."""
        ready = prepare_model(path, settings, registry)
        with ready.file:
            counts = [count for count in ready.experts.sizes.layers if count]
        if len({*counts}) != 1:
            raise ValueError(f"{path} has layers of {sorted({*counts}) or 'no'} experts: only a "
                             "mixture whose layers are alike plays a trace")  # fmt: skip
        return cls(len(counts), counts[0], ready.experts.top_k)


def registry_with_traces() -> Registry:
    return with_traced_routes(Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys()))


def rows_of(
    path: Path,
    openings: Sequence[Opening],
    draw: Draw,
    common: dict[str, Any],
    registry: Registry,
    *,
    repeats: int,
    seconds: float,
    link: float,
    before: Sequence[Row] = (),
) -> Iterator[Row]:
    """A row for each case of each opening, as soon as it is measured. One that fails says why, and
    so do those of openings that would begin behind ``seconds``. What is among the rows ``before``
    is not measured again."""
    started = time.perf_counter()
    bases: dict[str, float] = {}
    note_bases(bases, before)
    first = True
    for opening in missing(openings, before):
        left = started + seconds - time.perf_counter()
        names = [{"case": case.name, "opening": str(opening)} for case in opening.cases]
        if left <= 0:
            yield from ({**name, "skipped": f"--seconds {seconds:g} are over"} for name in names)
            continue
        try:
            limits = {"repeats": repeats, "link": link, "first": first}
            first = False
            for row in opened_rows(path, opening, draw, common, registry, **limits):
                note_bases(bases, (row,))
                yield judged(row, bases.get(row["case"]))
        except (KinfolkError, RuntimeError, ValueError) as error:
            reason = f"cannot be opened: {type(error).__name__}: {error}"
            yield from ({**name, "failed": reason} for name in names)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def note_bases(bases: dict[str, float], rows: Sequence[Row]) -> None:
    """Remember the times, by case, with all experts on the device because that was asked for."""
    for row in rows:
        if "ms" in row and row["opening"].startswith("all,"):
            bases.setdefault(row["case"], row["ms"])


def missing(openings: Sequence[Opening], before: Sequence[Row]) -> list[Opening]:
    """The openings with the cases that have no row yet."""
    done = {(row["opening"], row["case"]) for row in before if "ms" in row}
    left = (
        replace(each, cases=tuple(c for c in each.cases if (str(each), c.name) not in done))
        for each in openings
    )
    return [each for each in left if each.cases]


def link_rate(device: str) -> float:
    """Bytes a second of a large copy from host memory to the device."""
    rate = copy_rate(choose_device(device))
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return rate


def opened_rows(
    path: Path,
    opening: Opening,
    draw: Draw,
    common: dict[str, Any],
    registry: Registry,
    *,
    repeats: int,
    link: float,
    first: bool,
) -> Iterator[Row]:
    """The rows of one opening. On a GPU the ``first`` engine of a process runs once before, and is
    not counted: with all experts near it decodes 4 % faster than each later one (35B, H200), so
    what is added to its time would be too much."""
    settings = load_settings(**{**common, **opening.settings})
    traces = {case.name: draw(case.trace, case.work.sequences) for case in opening.cases}
    cuda = settings.device != "cpu" and torch.cuda.is_available()
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    with playing(traces[opening.cases[0].name]) as player:
        loaded = load_model(path, settings, registry)
        opened = time.perf_counter() - began
        player.real_rows = loaded.real_rows
        if first and cuda:
            with suppress(KinfolkError, RuntimeError, ValueError):  # its row says what is wrong
                measured(loaded, settings, player, opening.cases[0], 1, link)
            gc.collect()
        for case in opening.cases:
            player.use(traces[case.name])
            try:
                row = measured(loaded, settings, player, case, repeats, link)
            except (KinfolkError, RuntimeError, ValueError) as error:
                row = {"case": case.name, "failed": f"{type(error).__name__}: {error}"}
            gc.collect()  # two engines' state at once may not fit
            yield {
                "opening": str(opening),
                "memory": opening.memory,
                "swap": opening.swap,
                "opened_seconds": round(opened, 1),
                "link_GB_s": round(link / 1e9, 2),
                **memory_taken(cuda),
                **row,
            }
        loaded.file.close()


def memory_taken(cuda: bool) -> Row:
    """GiB of the device: the most that torch has taken, and what is taken now by all programs and
    the driver."""
    if not cuda:
        return {}
    free, total = torch.cuda.mem_get_info()
    peak = torch.cuda.max_memory_reserved()
    return {"peak_GiB": round(peak / GIB, 3), "taken_GiB": round((total - free) / GIB, 3)}


def machine(device: str) -> Row:
    """Where this runs."""
    cuda = device != "cpu" and torch.cuda.is_available()
    name = torch.cuda.get_device_name() if cuda else "cpu"
    return {"machine": name, "torch": torch.__version__, "kernels": kernels_hash()}


@dataclass(frozen=True, slots=True)
class Running:
    """What ``measure`` needs of a runtime; without tokenizer, and with one engine."""

    engine: Engine

    @property
    def info(self) -> ModelInfo:
        return self.engine.loaded.info


def measured(
    loaded: LoadedModel, settings: Settings, player: Player, case: Case, repeats: int, link: float
) -> Row:
    """One case, in an engine of its own."""
    work = case.work
    limits = scheduler_limits(loaded, settings)
    limits = replace(limits, max_draft=work.rows - 1, widths="fixed")
    drafter = RandomDrafts(loaded.info.vocabulary) if work.rows > 1 else None
    with Engine(loaded, limits, drafter) as engine:
        own: Any = Running(engine)
        measure(own, work, seed=0)
        engine.expert_use()  # nothing runs behind it
        restart(loaded, player)
        before = counters(engine)
        measure(own, work, seed=1)
        warm = len(player.rows())
        runs = [measure(own, work, seed=2 + repeat) for repeat in range(repeats)]
        engine.expert_use()
        counted = [now - then for now, then in zip(counters(engine), before, strict=True)]
        rows = player.rows()
        refused = dict(engine.uncapturable_ops())
    prompts = [round(1e3 * run.prompt, 3) for run in runs]
    steps = [round(1e3 * run.decode / max(1, run.steps), 4) for run in runs]
    row: Row = {
        "case": case.name,
        "architecture": loaded.info.architecture,
        "trace": player.trace.name,
        "sequences": work.sequences,
        "rows": work.rows,
        "prompts": case.prompts,
        "ms": statistics.median(prompts if case.prompts else steps),
        "prompt_ms": prompts,
        "step_ms": steps,
        "uncapturable_ops": refused,
    }
    if loaded.experts is None:
        return row
    traffic = Traffics.of(loaded, player.trace, case.work, rows, warm)
    return row | traffic.described(counted, link, repeats if case.prompts else 0)


def restart(loaded: LoadedModel, player: Player) -> None:
    """Experts and trace as they were when the model was opened. No step may run."""
    with torch.inference_mode():
        player.rewind()
        if loaded.experts is None:
            return
        for layer in loaded.experts.layers.values():
            layer.score.zero_()
            layer.enter(layer.placed)
        loaded.experts.restore()


def counters(engine: Engine) -> list[int]:
    """Experts near, fetched and read far so far; empty with all of them on the device."""
    stats = engine.stats()
    names = ("expert_hits", "expert_fetched", "expert_far")
    return [stats[name] for name in names if name in stats]


@dataclass(frozen=True, slots=True)
class Traffics:
    """What the simulator counts on the steps that the device has run: ``whole`` is to equal the
    device's counters; of the timed steps, those of prompts and those that decode."""

    plan: ExpertPlan
    record: Numbers
    whole: Traffic
    prompt: Traffic
    decode: Traffic
    decoded: int
    """Rows of a step that decodes."""

    @classmethod
    def of(
        cls, loaded: LoadedModel, trace: Trace, work: Workload, rows: Sequence[int], warm: int
    ) -> Traffics:
        assert loaded.source is not None
        plan = loaded.source.ready.experts
        layers = [layer for layer, count in enumerate(plan.sizes.layers) if count]
        pinned = plan.placement.pinned
        placement = Placement(
            tuple(plan.placement.bays[layer] for layer in layers),
            tuple(pinned[layer] for layer in layers) if pinned else (),
        )
        record: Numbers = np.array([plan.sizes.nbytes[layer] for layer in layers])
        whole, prompt, decode = (Traffic.none(trace.layers) for _ in range(3))
        policy = DecayedCount(DECAY) if plan.swap else Static()
        residency = Residency.of(placement, trace.experts)
        most, decoded = MAX_FETCH_ROWS, work.sequences * work.rows
        for number, step in enumerate(walk(trace, policy, residency, rows, most)):
            if step.counted:
                whole.add(step)
            if number >= warm:
                (decode if step.rows <= decoded else prompt).add(step)
        return cls(plan, record, whole, prompt, decode, decoded)

    def described(self, counted: Sequence[int], link: float, prompts: int) -> Row:
        """Bytes and time of so many timed prompts, each; of a step that decodes, if that is 0."""
        timed = self.prompt if prompts else self.decode
        copied, read = timed.missed_bytes(self.record)
        steps = prompts or max(1, timed.steps)
        seconds = predicted_seconds(
            *(timed, self.record, link),
            # Prompts of more rows than captured steps have are not fetched for.
            fetches=self.plan.swap and any(timed.fetched),
            read_share=self._read_share(prompts),
        )
        experts = sum(self.plan.sizes.layers)
        return {
            "bays": sum(self.plan.bays),
            "experts": experts,
            "percent": round(100 * sum(self.plan.bays) / experts, 1),
            "landing_MB": round(self.plan.landing / 1e6, 3),
            # Without swaps the device counts nothing.
            "device": list(counted) if self.plan.swap else None,
            "simulated": list(self.whole.totals),
            "steps": timed.steps,
            "hit_share": round(timed.hit_share, 4),
            "decode_hit_share": round(self.decode.hit_share, 4),
            "copied_MB": round(copied / steps / 1e6, 3),
            "far_MB": round(read / steps / 1e6, 3),
            "predicted_ms": round(1e3 * seconds / steps, 3),
        }

    def _read_share(self, prompts: int) -> float:
        """Of a large copy, the rate at which experts that are not fetched are read or land."""
        if self.plan.landing and (prompts or self.decoded >= LANDED_ROWS):
            return LANDED_SHARE
        return GROUPS_SHARE if prompts else PAIRS_SHARE


def judged(row: Row, base: float | None) -> Row:
    """The row with what its experts add and, if there is one, the bar."""
    if "bays" not in row:
        return row
    bar = bar_of(row)
    added = None if base is None else round(row["ms"] - base, 3)
    held = None if bar is None or added is None else added <= bar
    told: Row = {"full_ms": base, "added_ms": added, "bar_ms": bar, "held": held}
    if row["memory"] is not None and "peak_GiB" in row:
        told["memory_held"] = row["peak_GiB"] <= row["memory"]
    return row | told


def bar_of(row: Row) -> float | None:
    """Most milliseconds that a step, or a prompt, may take longer; ``None``: only reported."""
    link = row["link_GB_s"]
    copied, read = row["copied_MB"], row["far_MB"]
    if row["prompts"]:
        return round(read / (0.6 * link), 3)
    if row["swap"] == "off":
        return round(read / (0.80 * link) + 0.3, 3)
    if row["sequences"] > 1 or row["rows"] > 1:
        return round(1.1 * (copied + read) / (0.75 * link), 3)
    if not str(row["trace"]).startswith("sticky"):
        return None
    model = row["architecture"], row["experts"]
    if row["memory"] is not None:
        return CARDS.get(round(row["memory"])) if model == QWEN_35B else None
    return STEADY.get(model, {}).get(round(row["percent"]))
