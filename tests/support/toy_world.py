"""A toy engine with exact integer arithmetic, and the solo run that its outputs are compared with.

The toy's "logits" are a hash of all that a model would read: the recurrent state of the slot, and
for each pool the tokens in the blocks of the slot's table. So a wrong table, a missing copy, a
stale block or a state that was advanced too far changes the output or raises.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from kinfolk.plans import PoolRule, ScoredLayers, StateLimits
from kinfolk.residency.rules import ResidencyRules
from kinfolk.sched.events import Emitted, Finished, Held, SchedulerEvent
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import (
    ChunkScores,
    Item,
    ItemKind,
    ItemResult,
    ScoreRequest,
    StepPlan,
    StepResult,
)
from kinfolk.sched.request import Request
from kinfolk.sched.scheduler import Scheduler
from kinfolk.state.host_rows import HostLayout, HostRows
from kinfolk.state.kv_cache_manager import KVCacheManager
from kinfolk.state.operations import (
    ClearSlot,
    CopyBlock,
    CopyQueries,
    CopyRecurrent,
    DigestChunk,
    DropSaved,
    LoadBlock,
    LoadRecurrent,
    MapChunk,
    SaveBlock,
    SaveRecurrent,
    StateOperation,
    StoreRecurrent,
    UnmapChunk,
)
from kinfolk.state.prefix import PrefixCache
from kinfolk.types import CHUNK_POSITIONS

VOCABULARY = 29
EMPTY = (0, 0)
RING = 8
"""Last rows whose queries are kept."""

POISON = (-1, -1)
Recurrent = tuple[int, int]
Windows = tuple[int | None, ...]


def advance(state: Recurrent, token: int) -> Recurrent:
    """The state after ``token``: (number of tokens, rolling 64-bit hash of them)."""
    return state[0] + 1, (state[1] * 6364136223846793005 + token + 1) % 2**64


def rolling(tokens: list[int]) -> Recurrent:
    state = EMPTY
    for token in tokens:
        state = advance(state, token)
    return state


def visible_from(window: int | None, position: int) -> int:
    return 0 if window is None else max(0, position - window + 1)


def choose(state: Recurrent, seen: list[tuple[int, ...]]) -> int:
    return hash((state, tuple(seen))) % VOCABULARY


def solo(prompt: tuple[int, ...], count: int, windows: Windows, recurrent: bool) -> list[int]:
    """``count`` tokens after ``prompt``, computed without blocks or slots."""
    known = list(prompt)
    state = rolling(known)
    for _ in range(count):
        last = len(known) - 1
        seen = [tuple(known[visible_from(window, last) :]) for window in windows]
        known.append(choose(state if recurrent else EMPTY, seen))
        state = advance(state, known[-1])
    return known[len(prompt) :]


def chunk_scores(request: ScoreRequest) -> tuple[tuple[float, ...] | None, bool]:
    """Scores that depend on the tokens alone; sometimes nobody has an opinion, or all stays."""
    count, kind = len(request.resident), hash((*request.tokens[-3:], request.length)) % 7
    if kind < 2:
        return None, kind == 0
    numbers = (hash((n, *request.tokens[-2:])) % 13 for n in range(count))
    return tuple(map(float, numbers)), False


class ToyEngine:
    """Executes plans on blocks of (position, token) and on hashes of the tokens."""

    def __init__(
        self, windows: Windows, limits: StateLimits, *, recurrent: bool, paged: bool = False
    ) -> None:
        self.windows = windows
        self.paged = paged
        self.recurrent = recurrent
        self.limits = limits
        self.blocks: list[list[list[tuple[int, int] | None]]] = [
            [[None] * CHUNK_POSITIONS for _ in range(size + 1)] for size in limits.blocks
        ]
        self.tables: list[list[dict[int, int]]] = [
            [{} for _ in range(limits.slots + 1)] for _ in windows
        ]
        self.states: list[Recurrent] = [POISON] * limits.recurrent_slots
        self.saved: dict[int, Any] = {}
        self.epochs = [0] * (limits.slots + 1)
        self.fresh = [False] * (limits.slots + 1)
        self.digests: dict[int, tuple[list[int], ...]] = {}
        self.queries: list[dict[int, tuple[int, int]]] = [
            {} for _ in range(max(limits.query_slots, limits.slots + 1))
        ]

    def run(self, plan: StepPlan, *, failing: frozenset[str] = frozenset()) -> StepResult:
        for operation in plan.operations:
            self._apply(operation)
        results = tuple(self._item(item, item.request_id in failing) for item in plan.items)
        if self.limits.scored is not None:
            for each in plan.scores:
                self._check_scored(each)
        scores = tuple(ChunkScores(each.lease, *chunk_scores(each)) for each in plan.scores)
        return StepResult(plan.step_id, results, scores=scores)

    def lose(self, plan: StepPlan) -> None:
        """Run a step that fails and destroys all state on the device."""
        for operation in plan.operations:
            self._apply(operation)
        self._poison_all()

    def _apply(self, operation: StateOperation) -> None:
        match operation:
            case ClearSlot(slot):
                self.fresh[slot] = True
                self.states[slot] = EMPTY
                self.queries[slot] = {}
                for tables in self.tables:
                    tables[slot] = {}
            case MapChunk(pool, slot, chunk, block):
                assert chunk not in self.tables[pool][slot]
                self.tables[pool][slot][chunk] = block
            case UnmapChunk(pool, slot, chunk):
                del self.tables[pool][slot][chunk]
            case CopyBlock(pool, source, target):
                self.blocks[pool][target] = list(self.blocks[pool][source])
            case CopyRecurrent(source, target):
                assert self.recurrent
                self.states[target] = self.states[source]
            case StoreRecurrent(slot):
                assert self.recurrent
                self.states[slot] = POISON
            case SaveBlock(pool, block, identity):
                assert identity not in self.saved
                self.saved[identity] = list(self.blocks[pool][block])
            case LoadBlock(pool, identity, block):
                self.blocks[pool][block] = list(self.saved[identity])
            case SaveRecurrent(slot, identity):
                assert self.recurrent
                assert identity not in self.saved
                self.saved[identity] = self.states[slot]
            case LoadRecurrent(identity, slot):
                self.states[slot] = self.saved[identity]
            case DropSaved(identity):
                del self.saved[identity]
            case DigestChunk(block, first, place):
                both = (self.blocks[0][block], self.blocks[0][first])
                self.digests[place] = tuple([token for _, token in each] for each in both)
            case CopyQueries(source, target):
                self.queries[target] = dict(self.queries[source])

    def _check_scored(self, request: ScoreRequest) -> None:
        """The digests are those of the chunks, and the queries those of the last rows."""
        assert len(request.digests) == len(request.resident)
        known = list(request.tokens)
        for number, place in enumerate(request.digests):
            chunk = known[number * CHUNK_POSITIONS : (number + 1) * CHUNK_POSITIONS]
            assert self.digests[place] == (chunk, known[:CHUNK_POSITIONS])
        ring = self.queries[request.lease.slot]
        for position in range(max(request.started, request.stop - RING), request.stop):
            found, token = ring[position % RING]
            assert found in (position, position + RING)
            assert found >= len(known) or token == known[found]

    def _ask(self, slot: int, position: int, token: int) -> None:
        self.queries[slot][position % RING] = (position, token)

    def _item(self, item: Item, fails: bool) -> ItemResult:
        slot = item.lease.slot
        self._check_lease(item)
        for row, token in enumerate(item.tokens):
            self._write(slot, item.start + row, POISON[1] if fails else token)
        if fails:
            self.states[slot] = POISON
            for _, target in item.stores:
                self.states[target] = POISON
            return ItemResult(item.lease, item.request_id, 0, error="the toy stumbled")
        if item.of_prompt:
            for row, token in enumerate(item.tokens):
                self._ask(slot, item.start + row, token)
        if item.kind is ItemKind.PREVIEW:
            return ItemResult(item.lease, item.request_id, 0)
        if item.kind is ItemKind.PREFILL:
            return self._prefill(item)
        return self._verify(item)

    def _prefill(self, item: Item) -> ItemResult:
        slot, stores = item.lease.slot, dict(item.stores)
        for row, token in enumerate(item.tokens, start=1):
            self.states[slot] = advance(self.states[slot], token)
            if row in stores:
                self.states[stores[row]] = self.states[slot]
        last = item.start + len(item.tokens) - 1
        emitted = (self._next(slot, last, self.states[slot]),) if item.sample else ()
        return ItemResult(item.lease, item.request_id, len(item.tokens), emitted)

    def _verify(self, item: Item) -> ItemResult:
        slot = item.lease.slot
        state, emitted = self.states[slot], []
        for row, token in enumerate(item.tokens):
            if row and token != emitted[-1]:
                break
            state = advance(state, token)
            self._ask(slot, item.start + row, token)
            emitted.append(self._next(slot, item.start + row, state))
            self.states[slot] = state
        assert len(emitted) <= item.budget
        return ItemResult(item.lease, item.request_id, len(emitted), tuple(emitted))

    def _next(self, slot: int, position: int, state: Recurrent) -> int:
        seen = [
            self._read(pool, slot, visible_from(window, position), position)
            for pool, window in enumerate(self.windows)
        ]
        return choose(state if self.recurrent else EMPTY, seen)

    def _check_lease(self, item: Item) -> None:
        slot, epoch = item.lease.slot, item.lease.epoch
        if self.fresh[slot]:
            assert epoch > self.epochs[slot], "epochs increase"
            self.epochs[slot], self.fresh[slot] = epoch, False
        assert epoch == self.epochs[slot], "the lease is over"
        if self.recurrent:
            assert self.states[slot][0] == item.start, "fed out of order"

    def _write(self, slot: int, position: int, token: int) -> None:
        for pool, tables in enumerate(self.tables):
            block = tables[slot][position // CHUNK_POSITIONS]
            self.blocks[pool][block][position % CHUNK_POSITIONS] = (position, token)

    def _read(self, pool: int, slot: int, first: int, last: int) -> tuple[int, ...]:
        table, tokens = self.tables[pool][slot], []
        for chunk in range(first // CHUNK_POSITIONS, last // CHUNK_POSITIONS + 1):
            if self.paged and self.windows[pool] is None and chunk not in table:
                continue
            block = self.blocks[pool][table[chunk]]
            start = max(first, chunk * CHUNK_POSITIONS)
            for position in range(start, min(last + 1, (chunk + 1) * CHUNK_POSITIONS)):
                entry = block[position - chunk * CHUNK_POSITIONS]
                assert entry is not None, f"position {position} was never written"
                assert entry[0] == position, f"position {position} holds {entry}"
                tokens.append(entry[1])
        return tuple(tokens)

    def _poison_all(self) -> None:
        self.saved.clear()
        self.states = [POISON] * len(self.states)
        for pool in self.blocks:
            for block in pool:
                block[:] = [POISON] * CHUNK_POSITIONS


class ToyDrafter:
    """Drafts the solo run's tokens with errors; ``quality`` is the chance that a token is right."""

    def __init__(self, windows: Windows, recurrent: bool, quality: float, seed: int = 0) -> None:
        self.windows, self.recurrent, self.quality = windows, recurrent, quality
        self.random = random.Random(seed)
        self.texts: set[int] = set()
        self.raises = False

    def propose(self, known: list[int], limit: int) -> list[int]:
        if self.raises:
            raise RuntimeError("no idea")
        self.texts.add(id(known))
        wanted = self.random.randint(0, limit)
        tokens = solo(tuple(known), wanted, self.windows, self.recurrent)
        return [
            token if self.random.random() < self.quality else self.random.randrange(VOCABULARY)
            for token in tokens
        ]

    def release(self, known: list[int]) -> None:
        self.texts.discard(id(known))


class World:
    """A scheduler, its KV cache manager and the toy engine; collects the events of each request."""

    def __init__(
        self,
        limits: SchedulerLimits,
        *,
        windows: Windows = (None,),
        recurrent: bool = True,
        blocks: tuple[int, ...] | None = None,
        checkpoints: int = 4,
        spare_slots: int = 0,
        host_rows: int | None = 0,
        quality: float | None = None,
        seed: int = 0,
        disk: Any = None,
        residency: ResidencyRules | None = None,
    ) -> None:
        self.residency = residency
        self.limits, self.windows, self.recurrent = limits, windows, recurrent
        enough = limits.slots * (limits.context // CHUNK_POSITIONS + 1) * 2
        self.state_limits = StateLimits(
            slots=limits.slots,
            checkpoints=checkpoints,
            spare_slots=spare_slots,
            blocks=(enough,) * len(windows) if blocks is None else blocks,
            context=limits.context,
            step_rows=max(limits.slice, limits.max_draft + 1),
        )
        if residency is not None and residency.previews:
            scored = ScoredLayers((0,), suspended=limits.slots)
            self.state_limits = replace(self.state_limits, scored=scored, resident=residency.chunks)
        layout = HostLayout.counting_rows(len(windows))
        capacity = None if host_rows is None else host_rows * layout.page_bytes
        host = HostRows(layout, capacity)
        rules: tuple[PoolRule, ...] = ()
        if residency is not None and residency.previews:
            rules = tuple(PoolRule(each, residency.sink, residency.tail) for each in windows)
        self.kv_cache = KVCacheManager(
            windows, self.state_limits, recurrent=recurrent, rules=rules, host=host
        )
        self.prefixes = PrefixCache(self.kv_cache.checkpoints, checkpoints)
        self.engine = ToyEngine(
            windows, self.state_limits, recurrent=recurrent, paged=residency is not None
        )
        self.drafter = (
            None if quality is None else ToyDrafter(windows, recurrent, quality, seed=seed)
        )
        self.scheduler = Scheduler(
            limits, self.kv_cache, self.prefixes, self.drafter, disk, residency
        )
        self.requests: dict[str, Request] = {}
        self.streams: dict[str, list[int]] = {}
        self.finished: dict[str, Finished] = {}
        self.held: list[str] = []
        self.plans: list[StepPlan] = []

    def submit(self, request: Request) -> None:
        self.scheduler.check(request)
        self.scheduler.submit(request)
        self.requests[request.id] = request
        self.streams[request.id] = []

    def cancel(self, request_id: str, *reason: Any) -> None:
        self.take(self.scheduler.cancel(request_id, *reason))

    def plan(self) -> StepPlan | None:
        plan = self.scheduler.plan()
        if plan is not None:
            self.plans.append(plan)
        return plan

    def step(self, **faults: Any) -> StepPlan | None:
        plan = self.plan()
        if plan is not None:
            self.take(self.scheduler.commit(self.engine.run(plan, **faults)))
        return plan

    def lose(self, plan: StepPlan) -> None:
        self.engine.lose(plan)
        self.take(self.scheduler.fail_all("the toy burnt down"))

    def ahead(self, result: StepResult, **faults: Any) -> StepResult | None:
        """The result of the next step, run on the tokens of ``result`` before that is committed."""
        plan = self.scheduler.plan_next()
        if plan is None:
            return None
        self.plans.append(plan)
        before = {outcome.lease: outcome for outcome in result.results}
        items = [
            replace(item, tokens=before[item.lease].emitted)
            for item in plan.items
            if before[item.lease].error is None
        ]
        done = self.engine.run(replace(plan, items=tuple(items)), **faults)
        lost = tuple(
            ItemResult(item.lease, item.request_id, 0, error="nothing to go on from")
            for item in plan.items
            if before[item.lease].error is not None
        )
        return replace(done, results=done.results + lost)

    def drain(self) -> None:
        """Run to the end, and grant held requests all. Every step advances a request, so the number
        of steps is bounded."""
        for request_id in self.scheduler.alive:
            self.scheduler.grant(request_id)
        size = min(self.limits.slice, self.limits.mixed_slice or self.limits.slice)
        if self.residency is not None:
            size = self.residency.slice_rows(size)
        bound = sum(
            len(request.prompt) // size + 2 + request.max_new
            for request_id, request in self.requests.items()
            if request_id not in self.finished
        )
        for _ in range(bound):
            if self.step() is None:
                break
        assert self.scheduler.idle

    def take(self, events: list[SchedulerEvent]) -> None:
        for event in events:
            assert event.request_id not in self.finished, "nothing follows the terminal event"
            if isinstance(event, Held):
                self.held.append(event.request_id)
            elif isinstance(event, Finished):
                self.finished[event.request_id] = event
            elif isinstance(event, Emitted):
                self.streams[event.request_id] += event.tokens

    def expected(self, request: Request) -> list[int]:
        """The solo run up to its first stop token."""
        tokens = solo(request.prompt, request.max_new, self.windows, self.recurrent)
        for count, token in enumerate(tokens, start=1):
            if token in request.stop:
                return tokens[:count]
        return tokens

    def check_idle(self) -> None:
        """Assert that only the prefix cache holds blocks, and after dropping it, nothing does."""
        self.kv_cache.check_integrity()
        assert self.scheduler.idle
        assert self.scheduler.waiting == self.scheduler.running == 0
        assert len(self.kv_cache.tables.free) == self.limits.slots
        assert self.drafter is None or not self.drafter.texts
        self.prefixes.clear()
        assert self.kv_cache.host.used == self.kv_cache.host.rows == 0
        behind = self.state_limits.recurrent_slots - self.state_limits.slots - 1
        assert len(self.kv_cache.checkpoints.free) == behind
        for pool, size in enumerate(self.state_limits.blocks):
            assert (
                self.kv_cache.tables.available(pool) == len(self.kv_cache.pools[pool].free) == size
            )
