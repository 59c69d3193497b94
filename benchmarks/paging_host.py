"""The host's time when chunks of a long sequence come and go (``--kvflash``), without a GPU.

    python benchmarks/paging_host.py [--context 262144] [--budget 16384] [--burst 32] [--rounds 60]
                                     [--cold MB] [--profile PIECE]

One sequence decodes at the end of its context; books, tables and scoring are those of the engine.
No model runs, and copies and kernels do nothing. Scores are drawn so that each choice has as many
exchanges as there may be. Prints microseconds of each piece, the median of the rounds:

asking      the plan that asks for scores: which chunks are there, and places of compressed keys
scoring     the host's part of scores: arguments, and launches behind the step
choosing    scores are read, and chunks are chosen
loading     the plan that loads what comes, into spare blocks
moving      the plan that exchanges chunks
leaving     without a scorer: the plan in which one chunk leaves
... done    operations of a plan are carried out, and changes of tables are found

hot: one choice follows the other. cold: before each choice, and before each chunk that leaves, so
many MB of memory are written: in an engine, half a second has passed since the last time. coldest:
before each piece, as between two steps of an engine others use the processor too.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import TypeVar, cast
from unittest.mock import patch

import numpy as np
import torch
from host import StillKernel

from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.chunk_scoring import ChunkScoring
from kinfolk.engine.qk_scorer import QkScorer
from kinfolk.hooks import ModelHookCaller
from kinfolk.nn.queries import QueryKind
from kinfolk.ops.binding import Ops
from kinfolk.plans import Codec, Paged, PoolRule, ScoredLayers, Section, StateLimits, StatePlan
from kinfolk.registry import Registry
from kinfolk.residency.residency import Phase
from kinfolk.residency.rules import ResidencyRules
from kinfolk.sched.paging import Paging
from kinfolk.sched.request import Request, Sequence
from kinfolk.settings import load_settings
from kinfolk.state.copies import HostStreams
from kinfolk.state.geometry import chunks_for
from kinfolk.state.host_rows import HostLayout, HostRows
from kinfolk.state.kv_cache_manager import KVCacheManager
from kinfolk.state.state import State
from kinfolk.types import CHUNK_POSITIONS

T = TypeVar("T")
CPU = torch.device("cpu")
LAYERS, HEADS, KEY_DIM = (0, 1, 2), 24, 64
ONCE = 4
"""Rounds that do not count."""

PIECES = {
    "choice": ("asking", "scoring", "choosing", "loading", "moving"),
    "choice, done": ("loading done", "moving done"),
    "eviction": ("leaving",),
    "eviction, done": ("leaving done",),
}
"""What is printed as a sum."""

FIRST = ("asking", "leaving")
"""Pieces that begin a choice, or an eviction."""


class Enqueued(HostStreams):
    """Copies and launches that were enqueued, and are never done."""

    def on_main(self, action: Callable[[], object]) -> None:
        pass

    def on_copies(self, action: Callable[[], object]) -> None:
        pass


class NoPolicies:
    """Nobody but the core scores chunks."""

    def asked(self, hook: str) -> tuple[str, ...]:
        return ()


class Clock:
    """Nanoseconds of pieces of work. Before some, ``cold`` bytes are written: before those that
    come ``first``, or all."""

    def __init__(self, cold: int, first: Collection[str] = (), profiled: str = "") -> None:
        self.times: dict[str, list[int]] = defaultdict(list)
        self.profile = cProfile.Profile()
        self._cold = np.zeros(cold // 8, np.int64)
        self._first = first
        self._profiled = profiled

    def take(self, name: str, work: Callable[[], T]) -> T:
        if not self._first or name in self._first:
            self._cold += 1
        if name == self._profiled:
            return self.profile.runcall(work)
        started = time.perf_counter_ns()
        result = work()
        self.times[name].append(time.perf_counter_ns() - started)
        return result

    def microseconds(self, name: str) -> float:
        return median(self.times[name][ONCE:] or [0]) / 1e3


@dataclass(frozen=True)
class Shape:
    """Positions of the context and of the budget, most exchanges of a choice, and how often."""

    context: int
    budget: int
    burst: int
    rounds: int

    @property
    def answer(self) -> int:
        return (self.rounds + ONCE + 1) * CHUNK_POSITIONS


class PagedText:
    """A sequence that was read up to its answer, without the numbers of any row."""

    def __init__(self, shape: Shape, clock: Clock, *, scored: bool) -> None:
        self._clock, self._scored = clock, scored
        resident = shape.budget // CHUNK_POSITIONS
        rules = ResidencyRules(resident, burst=shape.burst, scorers=("qk",) if scored else ())
        plan = StatePlan(tuple(Paged((Section("k", 1, KEY_DIM, Codec("f16")),)) for _ in LAYERS))
        limits = StateLimits(
            slots=1,
            checkpoints=0,
            blocks=(resident,),
            context=shape.context,
            step_rows=2048,
            resident=resident,
            scored=ScoredLayers(LAYERS) if scored else None,
        )
        self._books = KVCacheManager(
            plan.windows,
            limits,
            recurrent=False,
            rules=(PoolRule(None, rules.sink, rules.tail),),
            host=HostRows(HostLayout.of(plan), None),
        )
        self._state = State(plan, limits, CPU, Enqueued())
        scorer = still_scorer(plan, limits) if scored else None
        self._state.scorer = scorer
        policies = cast(ModelHookCaller, NoPolicies())
        self._scoring = ChunkScoring(policies, scorer, 1, chunks_for(shape.context), CPU)
        self._paging = Paging(rules, self._books.tables)
        self._chance = np.random.default_rng(1)
        words = tuple(range(256)) * (shape.context // 256)
        self.sequence = Sequence(Request("text", words[: -shape.answer], shape.answer), 0)
        self.sequence.lease = self._books.open(shape.context, resident=resident)
        self._paging.started(self.sequence)
        self._read()

    def decode(self) -> None:
        """One token."""
        sequence, tables, paging = self.sequence, self._books.tables, self._paging
        start, piece = sequence.computed, self._piece()
        self._take(piece, lambda: paging.before_decode(sequence, start, start + 1))
        tables.extend(sequence.leased, start + 1)
        requests = paging.take_requests()
        self._done(f"{piece} done" if piece else "")
        pending = self._take("scoring" if requests else "", lambda: self._scoring.launch(requests))
        for each in pending:
            assert each.values is not None
            drawn = self._chance.lognormal(sigma=12, size=len(each.values))
            np.asarray(each.values)[:] = drawn
        tables.advance(sequence.leased, start + 1)
        sequence.known.append(0)
        sequence.computed += 1
        paging.committed(sequence, 1)
        if pending:
            self._take("choosing", lambda: paging.scored(self._scoring.collect(pending)))

    def check(self, rounds: int) -> None:
        """All chunks moved that were to move, and the books agree."""
        self._books.check_integrity()
        rules = self._paging.rules
        assert rules is not None
        moved = self._paging.exchanges if self._scored else self._paging.evictions
        assert moved >= rounds * (rules.burst if self._scored else 1)
        assert not self._scoring.failures

    def _piece(self) -> str:
        """What the next plan has to do."""
        residency, start = self.sequence.residency, self.sequence.computed
        assert residency is not None
        if residency.phase is not Phase.IDLE:
            return {Phase.CHOSEN: "loading", Phase.LOADING: "moving"}[residency.phase]
        if residency.due():
            return "asking"
        return "leaving" if not self._scored and start % CHUNK_POSITIONS == 0 else ""

    def _take(self, piece: str, work: Callable[[], T]) -> T:
        return self._clock.take(piece, work) if piece else work()

    def _done(self, piece: str) -> None:
        """Carry out what was decided."""
        operations = self._books.take_operations()

        def done() -> None:
            self._state.apply(operations)
            self._state.block_tables.take_changes()

        self._take(piece, done)
        self._books.arrived(self._state.take_arrived())

    def _read(self) -> None:
        """The prompt."""
        sequence, tables, paging = self.sequence, self._books.tables, self._paging
        length = len(sequence.request.prompt)
        while sequence.computed < length:
            start = sequence.computed
            stop = paging.slice_end(sequence, min(length, start + 2048), 2048)
            paging.before_slice(sequence, stop)
            tables.extend(sequence.leased, stop)
            paging.take_requests()
            self._done("")
            tables.advance(sequence.leased, stop)
            sequence.computed = stop
            if paging.waits(sequence):
                self._keep()

    def _keep(self) -> None:
        """The answer to scores that the prompt has asked for: by recency."""
        residency = self.sequence.residency
        assert residency is not None
        residency.scored(None, range(0), keep=True)


def still_scorer(plan: StatePlan, limits: StateLimits) -> QkScorer:
    """The core's scorer, with the Triton back ends."""
    settings = load_settings(device="cpu")
    backends = Registry.discover(settings, reserved_commands=BUILT_IN.keys()).op_backends
    names = ("chunk_digest", "chunk_scores")
    ops = Ops([each.value for each in backends], dict.fromkeys(names, "triton"))
    kind = QueryKind(HEADS, torch.float16, KEY_DIM**-0.5)
    return QkScorer(
        ops, plan, LAYERS, kind, places=limits.digests, slots=limits.query_slots, device=CPU
    )


def still_kernels() -> ExitStack:
    """Context in which the kernels of scores do nothing."""
    stack = ExitStack()
    # The back ends then take tensors of the CPU.
    stack.enter_context(patch.dict(os.environ, TRITON_INTERPRET="1"))
    from kinfolk_kernels.chunk_digest import triton_backend as digests
    from kinfolk_kernels.chunk_scores import triton_backend as scores

    for module in (digests, scores):
        for name, kernel in list(vars(module).items()):
            if name.endswith("_kernel"):
                stack.enter_context(patch.object(module, name, StillKernel(kernel)))
    return stack


def measured(shape: Shape, clock: Clock) -> Clock:
    """The clock with the times of all pieces."""
    for scored in (True, False):
        text = PagedText(shape, clock, scored=scored)
        for _ in range(shape.answer - CHUNK_POSITIONS):
            text.decode()
        text.check(shape.rounds)
    return clock


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--context", type=int, default=2**18)
    arguments.add_argument("--budget", type=int, default=2**14)
    arguments.add_argument("--burst", type=int, default=32)
    arguments.add_argument("--rounds", type=int, default=60)
    arguments.add_argument("--cold", type=int, default=64, metavar="MB")
    arguments.add_argument("--profile", default="", metavar="PIECE")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    shape = Shape(options.context, options.budget, options.burst, options.rounds)
    with still_kernels(), torch.inference_mode():
        if options.profile:
            profile = measured(shape, Clock(0, profiled=options.profile)).profile
            pstats.Stats(profile).sort_stats("tottime").print_stats(35)
            return
        cold = options.cold * 2**20
        clocks = [measured(shape, each) for each in (Clock(0), Clock(cold, FIRST), Clock(cold))]
    sys.stdout.write(f"{'us':16}{'hot':>9}{'cold':>9}{'coldest':>9}\n")
    for title, pieces in PIECES.items():
        for piece in pieces:
            times = "".join(f"{clock.microseconds(piece):9.0f}" for clock in clocks)
            sys.stdout.write(f"{piece:16}{times}\n")
        sums = "".join(f"{sum(map(clock.microseconds, pieces)):9.0f}" for clock in clocks)
        sys.stdout.write(f"  {title:14}{sums}\n")


if __name__ == "__main__":
    main()
