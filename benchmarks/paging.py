"""What a sequence costs that is longer than its budget (``--kvflash``), against everything on the
device, and what is found again; with the goal beside each figure.

    kinfolk synth SHAPE FILE
    python benchmarks/paging.py --model FILE [--drafter FILE] [--rows step,full] [--limit SECONDS]
        [--device NAME] [--json FILE]

step        a token of decoding at the whole context with the budget, against the same pool with as
            many positions as such a step attends to, all of them on the device
full        the same against all positions on the device, where it has room for them
leaving     without a scorer: the host's time for each chunk that leaves
choosing    every 64 tokens the most exchanges that a choice makes, by drawn scores and by ``qk``:
            the host's time, and what was captured, allocated and waited for meanwhile
memory      the most that was allocated on the device, at the shorter and at the whole context
prompt      a prompt of the whole context, by the rates of pieces of it behind other positions
whole       the same, read once as a whole with the budget (not by default)
relocated   logits of forced tokens, before each of which random chunks have left and come back to
            other blocks, against those with everything in its place: no bit may differ; as
            captured steps and eagerly
unmoved     an answer with a budget that nothing has left yet, against one without: no token and no
            log-probability may differ
recall      the bundled model: right tokens where a text goes back to what has left, of those with
            everything on the device; exact: prompts were read so too, pooled: with the budget
            (``benchmarks/policies.py``)
drafts      the bundled model: the part of drafts by prompt look-up that it keeps with a budget, in
            points less than with everything on the device; in its own answers, which differ, and
            along the same ones
trees       the same for trees of several continuations (``benchmarks/lookup_trees.py``)
compressed  the first token of a long prompt that is compressed by the model of ``--drafter``
            (without one by the same file), against the same prompt read in full

Rows are taken in an order in which the most telling come first. The file is written as each row
ends, so a run may be stopped at any time; with ``--limit`` no row begins later than that, and what
cannot be taken says why. ``--rows``, ``--codecs`` and ``--sequences`` take parts of them. Weights
are read once for all engines, but for ``recall``, ``drafts``, ``trees`` and ``compressed``.

Long contexts are not read: **the forward of long slices is left out** (a policy answers
``build_graph``), so keys and values of those positions are zeros and answers mean nothing. All else
is done: chunks are planned, mapped, saved, evicted and loaded. What is timed is computed.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from paging_bits import relocated, unmoved
from paging_drafts import drafted
from paging_engine import (
    WARM_TOKENS,
    Bench,
    EngineKind,
    OneFile,
    Row,
    decoded,
    finished,
    forget_peak,
    peak_bytes,
    read_behind,
)
from paging_quality import compressed, recalled

from kinfolk.engine.sizing import GIB, host_memory
from kinfolk.errors import CapacityError, SettingsError
from kinfolk.sched.request import Request
from kinfolk.types import CHUNK_POSITIONS

ROWS: Final = (
    *("step", "leaving", "choosing", "memory", "full", "prompt", "whole"),
    *("relocated", "unmoved", "recall", "drafts", "trees", "compressed"),
)
GOALS: Final = {
    "step": (("ratio", "<=", 1.03), ("captures", "<=", 0), ("allocations", "<=", 0)),
    "full": (("times_faster", ">=", 1.5),),
    "leaving": (("host_us_an_eviction", "<=", 50),),
    "choosing": (
        *(("host_us_a_round", "<=", 1000), ("host_share_of_decode", "<=", 0.01)),
        *(("captures", "<=", 0), ("allocations", "<=", 0), ("waits_a_step", "<=", 1)),
    ),
    "memory": (("ratio", "<=", 1.01),),
    "prompt": (("times_faster", ">=", 1.6),),
    "relocated": (("differing", "<=", 0),),
    "unmoved": (("differing", "<=", 0), ("evictions", "<=", 0)),
    "recall": (("of_resident_exact", ">=", 1.0), ("of_resident_pooled", ">=", 0.95)),
    **dict.fromkeys(
        ("drafts", "trees"), (("points_lost", "<=", 1.5), ("points_lost_same_text", "<=", 1.5))
    ),
    "compressed": (("times_sooner", ">=", 5),),
}
"""Of each row the figures that have a goal."""

HOST_SHARE: Final = 0.7
"""Part of the host's free memory that chunks may use beside a GPU."""

PATIENCE: Final = 20.0
"""Seconds for memory to be given back."""

COUNTERS: Final = (
    *("steps", "waits", "captures", "allocations", "kvflash_evictions", "kvflash_recalls"),
)
HOST: Final = ("kvflash_scoring_us", "kvflash_choosing_us", "kvflash_moving_us")


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    rows: list[Row] = []
    head = {"options": {name: str(value) for name, value in vars(options).items()}}
    head |= machine(options)
    for row in Study(options).rows():
        rows.append(row)
        if options.json:
            options.json.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")
        sys.stdout.write(line(row))
        sys.stdout.flush()
    if any("failed" in row for row in rows):
        raise SystemExit(1)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, help="of the row compressed; default: --model")
    usual = tuple(each for each in ROWS if each != "whole")
    parser.add_argument("--rows", type=names, default=usual)
    parser.add_argument("--limit", type=float, help="seconds after which no row begins")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--context", type=int, default=2**18)
    parser.add_argument("--budget", type=int, default=16384)
    parser.add_argument("--burst", type=int, default=32, help="most exchanges of a choice")
    parser.add_argument("--short", type=int, default=8192, help="the shorter context of memory")
    parser.add_argument("--tokens", type=int, default=256, help="timed ones of an answer")
    parser.add_argument("--chunk", type=int, default=8192, help="tokens that prompt computes")
    parser.add_argument("--depths", type=numbers, default=(0, 2**16, 2**17))
    parser.add_argument("--sequences", type=numbers, default=(1, 4))
    parser.add_argument("--codecs", type=lambda text: text.split(","), default=["bf16", "q8_0"])
    parser.add_argument("--host", type=float, help="GiB of host memory for chunks")
    parser.add_argument("--compressed", type=int, default=2**17, help="tokens of that row's prompt")
    parser.add_argument("--keep-ratio", type=float, default=0.05)
    parser.add_argument("--forced", type=int, default=1200, help="tokens of relocated")
    parser.add_argument("--each", type=int, default=2, help="texts of a kind and depth of recall")
    parser.add_argument("--places", type=parts, default=(0.1, 0.5, 0.9), help="depths of recall")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def names(text: str) -> tuple[str, ...]:
    found = tuple(text.split(","))
    if unknown := set(found) - set(ROWS):
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: rows are {', '.join(ROWS)}")
    return found


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def parts(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def machine(options: argparse.Namespace) -> Row:
    cuda = torch.cuda.is_available() and options.device != "cpu"
    name = torch.cuda.get_device_name() if cuda else "cpu"
    return {"machine": name, "torch": torch.__version__, "taken": time.strftime("%Y%m%dT%H%M%SZ")}


def judged(row: Row) -> Row:
    """The row with what was to be reached, and whether it was."""
    goals = []
    for figure, sign, goal in GOALS.get(row["row"], ()):
        if figure in row:
            met = row[figure] <= goal if sign == "<=" else row[figure] >= goal
            goals.append({"figure": figure, "value": row[figure], "goal": f"{sign} {goal}"})
            goals[-1]["met"] = bool(met)
    return {**row, "goals": goals}


def line(row: Row) -> str:
    """A row for people: figures with their goals first, then all of it."""
    judgements = "; ".join(
        f"{each['figure']} {each['value']} (goal {each['goal']}: "
        f"{'met' if each['met'] else 'NOT met'})"
        for each in row["goals"]
    )
    rest = {name: value for name, value in row.items() if name not in ("row", "goals")}
    return f"{row['row']:10} {judgements}\n           {json.dumps(rest)}\n"


# -- which rows, in which order -------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """A row to be taken with an engine of a kind, or without one; ``about`` is written beside."""

    row: str
    kind: EngineKind | None
    take: Callable[[Any], Row]
    about: Row = field(default_factory=dict)


class Study:
    """Takes rows. ``_far`` are the milliseconds of steps at the whole context by format and number
    of sequences, ``_rates`` the tokens a second of pieces of a prompt behind each depth."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self._began = time.monotonic()
        self._file = OneFile(options.model, options.device)
        self._far: dict[tuple[str, int], float] = {}
        self._rates: dict[str, dict[int, float]] = {"paged": {}, "full": {}}
        self._open: EngineKind | None = None
        self._bench: Bench | None = None
        self._stack = ExitStack()
        self._refused: dict[EngineKind, Exception] = {}
        self._host_bytes = HOST_SHARE * host_memory()

    def rows(self) -> Iterator[Row]:
        try:
            for task in self._tasks():
                began = time.monotonic()
                row = {"row": task.row, **task.about, **self._taken(task)}
                yield judged(row | {"seconds": round(time.monotonic() - began, 2)})
        finally:
            self._close()

    def _taken(self, task: Task) -> Row:
        limit = self.options.limit
        if limit is not None and time.monotonic() - self._began > limit:
            return {"skipped": f"--limit {limit:g} is over"}
        try:
            return task.take(self._engine(task.kind))
        except (CapacityError, SettingsError) as error:
            return {"skipped": str(error)}
        except Exception as error:  # the others are to be taken all the same
            return {"failed": str(error), "trace": traceback.format_exc()}

    def _engine(self, kind: EngineKind | None) -> Bench | None:
        if kind == self._open:
            return self._bench
        self._close()
        if kind is None:
            return None
        if kind in self._refused:
            raise self._refused[kind]
        options = self.options
        paging: Row = {}
        if kind.scorer:
            paging = {"kvflash": options.budget, "kvflash_burst": options.burst}
            paging["kvflash_host"] = self._host()
        opening = self._file.opened(kind, options.chunk, context=options.context, **paging)
        try:
            self._bench = self._stack.enter_context(opening)
        except Exception as error:
            # Its traceback would keep what was allocated.
            self._refused[kind] = error.with_traceback(None)
            raise
        self._open = kind
        return self._bench

    def _close(self) -> None:
        self._open = self._bench = None
        self._stack.close()

    def _host(self) -> float | None:
        """GiB for chunks: the same for each engine. What the one before had pinned is given back by
        a thread, which may take a while."""
        if self.options.host or self.options.device == "cpu" or not torch.cuda.is_available():
            return self.options.host
        gc.collect()
        until = time.monotonic() + PATIENCE
        while host_memory() < self._host_bytes and time.monotonic() < until:
            time.sleep(0.1)
        return round(self._host_bytes / GIB, 3)

    def _tasks(self) -> Iterator[Task]:
        wanted = frozenset(self.options.rows)
        first, *others = self.options.codecs
        tasks = [*self._of_codec(first, wanted)]
        if wanted & {"prompt", "whole"}:
            tasks += self._prompts(first, wanted)
        for captured in (True, False) if "relocated" in wanted else ():
            tasks.append(Task("relocated", None, partial(self._relocated, captured)))
        if "unmoved" in wanted:
            tasks.append(Task("unmoved", None, lambda _: unmoved(self._file, self.options)))
        if "recall" in wanted:
            tasks.append(Task("recall", None, lambda _: recalled(self.options)))
        for row in ("drafts", "trees"):
            if row in wanted:
                tasks.append(Task(row, None, lambda _, row=row: drafted(self.options, row)))
        if "compressed" in wanted:
            tasks.append(Task("compressed", None, self._compressed))
        for codec in others:
            tasks += self._of_codec(codec, wanted - {"memory"})
        return iter(tasks)

    def _of_codec(self, codec: str, wanted: frozenset[str]) -> Iterator[Task]:
        sequences = self.options.sequences
        lru = EngineKind(codec, max(sequences), "lru")
        for count in sequences:
            about: Row = {"codec": codec, "sequences": count, "context": self.options.context}
            if "step" in wanted:
                yield Task("step", lru, lambda bench, n=count: self._step(bench, n), about)
        if "leaving" in wanted:
            yield Task("leaving", lru, self._leaving, {"codec": codec})
        for scorer in ("drawn", "qk") if "choosing" in wanted else ():
            kind = EngineKind(codec, max(sequences), scorer)
            yield Task("choosing", kind, self._choosing, {"codec": codec, "scorer": scorer})
        if "memory" in wanted:
            yield Task("memory", EngineKind(codec, max(sequences), "qk"), self._memory)
        # One sequence last: pieces of prompts go on with its engine.
        for count in sorted(sequences, reverse=True) if "full" in wanted else ():
            about = {"codec": codec, "sequences": count, "context": self.options.context}
            if "step" not in wanted:
                yield Task("far", lru, lambda bench, n=count: self._far_step(bench, n), about)
            kind = EngineKind(codec, count)
            yield Task("full", kind, lambda bench, n=count: self._full(bench, n), about)

    def _prompts(self, codec: str, wanted: frozenset[str]) -> Iterator[Task]:
        options = self.options
        paged, full = EngineKind(codec, max(options.sequences), "lru"), EngineKind(codec, 1)
        depths = [each for each in options.depths if each + options.chunk < options.context]
        for which, kind in (("full", full), ("paged", paged)) if "prompt" in wanted else ():
            for depth in depths:
                yield Task(
                    "piece",
                    kind,
                    lambda bench, which=which, depth=depth: self._piece(bench, which, depth),
                    {"which": which, "depth": depth},
                )
        if "whole" in wanted:
            yield Task("whole", paged, self._whole)
        if "prompt" in wanted:
            yield Task("prompt", None, lambda _: self._prompt())

    # -- decoding -----------------------------------------------------------------------------

    @property
    def _answer(self) -> int:
        return self.options.tokens + WARM_TOKENS

    def _step(self, paged: Bench, count: int) -> Row:
        """The same step far behind the start of a text, and where all of it is on the device."""
        rules = paged.loaded.residency
        if rules is None:
            raise SettingsError(f"--budget {self.options.budget} is not less than --context")
        self._require_host(paged, count)
        # As many positions as a paged step attends to, at the end of the answer.
        attended = rules.decoding * CHUNK_POSITIONS
        decoded(paged, count, attended - self._answer, self._answer)  # kernels, captures
        here = decoded(paged, count, attended - self._answer, self._answer)
        far = self._decoded_far(paged, count)
        return {
            "attended": attended,
            "resident_ms": here["ms"],
            "paged_ms": far["ms"],
            "ratio": round(far["ms"] / here["ms"], 4),
            "paged_mean_ms": far["mean_ms"],
            **{name: far[name] for name in COUNTERS},
        }

    def _far_step(self, paged: Bench, count: int) -> Row:
        self._require_host(paged, count)
        decoded(paged, count, self.options.chunk, self._answer)  # kernels, captures
        return {"ms": self._decoded_far(paged, count)["ms"]}

    def _decoded_far(self, bench: Bench, count: int) -> Row:
        far = decoded(bench, count, self.options.context - self._answer, self._answer)
        self._far[bench.codec, count] = far["ms"]
        return far

    def _require_host(self, paged: Bench, count: int) -> None:
        if not paged.has_host_room(count, self.options.context):
            raise SettingsError("the host has no room for the chunks of so many sequences (--host)")

    def _full(self, full: Bench, count: int) -> Row:
        decoded(full, count, self.options.chunk, self._answer)  # kernels, captures
        context = self.options.context - self._answer
        found: Row = {"ms": decoded(full, count, context, self._answer)["ms"]}
        far = self._far.get((full.codec, count))
        if far is not None:
            found |= {"paged_ms": far, "times_faster": round(found["ms"] / far, 3)}
        return found

    def _leaving(self, paged: Bench) -> Row:
        """Chunks that leave by recency, one for each chunk of the answer."""
        found = decoded(paged, 1, self.options.context - self._answer, self._answer)
        evictions, host = found["kvflash_evictions"], found["kvflash_moving_us"]
        return {
            "evictions": evictions,
            "host_us_an_eviction": round(host / max(1, evictions), 2),
            **{name: found[name] for name in COUNTERS},
        }

    def _choosing(self, paged: Bench) -> Row:
        """A choice of as many exchanges as there may be, every tau tokens."""
        decoded(paged, 1, self.options.context - self._answer, self._answer)  # kernels, captures
        found = decoded(paged, 1, self.options.context - self._answer, self._answer)
        rounds = max(1, found["kvflash_selections"])
        host = sum(found[name] for name in HOST)
        return {
            "ms": found["ms"],
            "mean_ms": found["mean_ms"],
            "rounds": found["kvflash_selections"],
            "exchanges_a_round": round(found["kvflash_recalls"] / rounds, 1),
            "host_us_a_round": round(host / rounds, 1),
            "host_share_of_decode": round(host / 1e6 / found["seconds"], 5),
            "waits_a_step": round(found["waits"] / found["steps"], 3),
            **{name: found[name] for name in (*COUNTERS, *HOST)},
        }

    # -- memory and prompts -------------------------------------------------------------------

    def _memory(self, paged: Bench) -> Row:
        """The most bytes at both lengths, of which the last part of the prompt is read."""
        peaks, device, limits = {}, paged.loaded.device, paged.loaded.limits
        for length in (self.options.short, self.options.context):
            forget_peak(device)
            depth = max(0, length - self.options.chunk)
            read_behind(paged, f"memory {length}", depth, length - depth - 1)
            peaks[length] = peak_bytes(device)
        short, long = peaks.values()
        scored = limits.scored
        return {
            "bytes": {str(length): peak for length, peak in peaks.items()},
            "ratio": round(long / short, 5),
            "digest_bytes": 0 if scored is None else limits.digests * scored.chunk_bytes,
        }

    def _piece(self, bench: Bench, which: str, depth: int) -> Row:
        """Tokens a second of a piece of a prompt, behind positions that were not read."""
        rate = read_behind(bench, which, depth, self.options.chunk)
        self._rates[which][depth] = rate
        return {"tok_s": round(rate, 1)}

    def _prompt(self) -> Row:
        """The time of a whole prompt, if that of a token is linear in its position."""
        seconds = {}
        for which, rates in self._rates.items():
            if not rates:
                raise SettingsError(f"no piece of a prompt was read: {which}")
            middles = np.array(list(rates)) + self.options.chunk / 2
            slope, start = 0.0, 1 / next(iter(rates.values()))
            if len(rates) > 1:
                slope, start = np.polyfit(middles, 1 / np.array(list(rates.values())), 1)
            context = self.options.context
            seconds[which] = float(start * context + slope * context**2 / 2)
        return {
            "full_s": round(seconds["full"], 2),
            "paged_s": round(seconds["paged"], 2),
            "times_faster": round(seconds["full"] / seconds["paged"], 3),
        }

    def _whole(self, paged: Bench) -> Row:
        """A prompt of the whole context, read."""
        tokens, began = self.options.context - 1, time.perf_counter()
        finished(paged.engine, Request("whole", paged.text(tokens, 3), 1, keep=False))
        seconds = time.perf_counter() - began
        return {"tokens": tokens, "s": round(seconds, 2), "tok_s": round(tokens / seconds, 1)}

    def _relocated(self, captured: bool, _: None) -> Row:
        found = relocated(self._file, self.options, replays=captured)
        return {"captured": captured, **found}

    def _compressed(self, _: None) -> Row:
        self._file.free()  # they are read with the model that scores
        return compressed(self.options)


if __name__ == "__main__":
    main()
