"""Faults while sequences are paged: at each kind of operation, in a selection, of the host's memory
and of the disk. Each costs one request or none, and no row of host memory; what is asked again is
answered as without the fault."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import paged_killed
import pytest

from kinfolk.engine.disk_tier import salt_record
from kinfolk.engine.engine import Engine
from kinfolk.engine.loading import load_model
from kinfolk.errors import CapacityError
from kinfolk.registry import Registry
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import FinishReason, Request
from kinfolk.settings import load_settings
from kinfolk.state import operations as kinds
from kinfolk.state.disk import DiskCache
from kinfolk.state.disk_admin import PrefixFolder
from kinfolk.state.host import HostMemory
from kinfolk.state.state import State
from kinfolk.types import CHUNK_POSITIONS

BUDGET = 8 * CHUNK_POSITIONS
CONTEXT = 1024
PROMPT, MORE = 650, 40
SLICE = 128

CHUNK_KINDS = [kinds.UnmapChunk, kinds.SaveBlock, kinds.LoadBlock, kinds.DigestChunk]
OTHER_KINDS = [
    *(kinds.CopyRecurrent, kinds.SaveRecurrent, kinds.LoadRecurrent, kinds.StoreRecurrent),
    *(kinds.MapChunk, kinds.DropSaved),
]
"""Of requests longer than their budget, with checkpoints in host memory."""

PARTS = [
    pytest.param(0.0, marks=pytest.mark.long, id="first"),
    pytest.param(0.5, id="middle"),
    pytest.param(1.0, marks=pytest.mark.long, id="last"),
]


@pytest.fixture(scope="module")
def loaded(registry, cases):
    options = {"device": "cpu", "dtype": "f32", "context": CONTEXT, "slots": 1, "draft": "off"}
    paging = {"kvflash": BUDGET, "kvflash_burst": 1, "kvflash_tau": 4, "kvflash_policy": "qk"}
    settings = load_settings(checkpoints=2, cache_memory=0.01, **options, **paging)
    return load_model(cases / "qwen35.gguf", settings, registry)


@dataclass
class Said:
    """What was answered, and which requests had to be asked again."""

    answers: dict[str, tuple[int, list[int]]] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)


class Scene:
    """An engine whose requests are asked again if they fail."""

    def __init__(self, loaded, disk=None):
        self.loaded, self.said = loaded, Said()
        limits = SchedulerLimits(
            slots=1,
            context=CONTEXT,
            step_tokens=2 * SLICE,
            slice=SLICE,
            vocabulary=loaded.info.vocabulary,
        )
        self.engine = Engine(loaded, limits, disk=disk)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.engine.close()
        self.engine.check_integrity()
        stats = self.engine.stats()
        assert stats["running"] == stats["waiting"] == 0

    def ask(self, name, prompt, keep=True, **options):
        request = Request(name, tuple(prompt), 12, keep=keep, **options)
        for _ in range(2):
            events = list(self.engine.submit(request))
            if events[-1].reason is not FinishReason.ERROR:
                break
            self.said.failed.append(events[-1].error)
        assert events[-1].reason is FinishReason.LENGTH, events[-1].error
        tokens = [token for event in events[:-1] for token in event.tokens]
        self.said.answers[name] = events[-1].usage.reused, tokens
        return [*prompt, *tokens]

    def run(self, known=None):
        """A chat of two turns, a long prompt that leaves nothing, and a short one, whose steps drop
        what that had. ``known``: what the first turn is to have been."""
        size = self.loaded.info.vocabulary
        prompt = [number * 31 % size for number in range(PROMPT)]
        first = self.ask("first", prompt, checkpoints=(PROMPT - 20,))
        self.ask("second", [*(known or first), *range(MORE)])
        self.ask("other", [number * 57 % size for number in range(PROMPT)], keep=False)
        self.ask("short", range(20), keep=False)
        assert_rows_are_of_prefixes(self.engine)
        return self.said, first


def assert_rows_are_of_prefixes(engine):
    """Nothing runs: host memory has rows of stored prefixes and no others."""
    engine.between_steps(engine.check_integrity)
    stats = engine.stats()
    assert stats["running"] == stats["waiting"] == 0
    assert stats["saved_rows"] <= stats["host_rows"]
    if not stats["prefixes_host"]:
        assert (stats["host_rows"], stats["host_bytes"]) == (0, 0)


@pytest.fixture
def intercept(monkeypatch):
    """``intercept(before)``: ``before`` is called with each operation, ahead of its execution, and
    with all operations of its plan."""
    apply = State.apply

    def start(before):
        def watched(operations):
            for number, operation in enumerate(operations):
                before(operation, operations, number)
                yield operation

        monkeypatch.setattr(
            State, "apply", lambda state, given, **how: apply(state, watched(tuple(given)), **how)
        )

    return start


@pytest.fixture(scope="module")
def whole(loaded):
    """Answers without a fault, by the tokens that they started from, the first turn, and how often
    each kind of operation is executed."""
    apply, seen = State.apply, Counter()

    def counted(state, operations, **how):
        operations = tuple(operations)
        seen.update(map(type, operations))
        apply(state, operations, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(State, "apply", counted)
        with Scene(loaded) as scene:
            said, first = scene.run()
    assert said.failed == []
    assert said.answers["second"][0] == len(first) - 1
    answers = {(name, reused): tokens for name, (reused, tokens) in said.answers.items()}
    with Scene(loaded) as cold:
        cold.ask("second", [*first, *range(MORE)])
    answers["second", 0] = cold.said.answers["second"][1]
    return answers, first, seen


def assert_answered(said, answers, costs=1):
    assert len(said.failed) <= costs
    for name, (reused, tokens) in said.answers.items():
        assert tokens == answers[name, reused], name


def test_the_requests_need_every_operation_that_is_to_fail(whole):
    assert {*CHUNK_KINDS, *OTHER_KINDS} <= set(whole[2])


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    "kind",
    [*CHUNK_KINDS, *(pytest.param(each, marks=pytest.mark.long) for each in OTHER_KINDS)],
    ids=lambda kind: kind.__name__,
)
def test_a_fault_at_an_operation_of_paging_costs_one_request(loaded, whole, intercept, kind, part):
    answers, first, seen = whole
    left = [1 + int(part * (seen[kind] - 1))]

    def before(operation, plan, number):
        left[0] -= type(operation) is kind
        if left[0] == 0:
            left[0] = -1
            raise RuntimeError("a bit has flipped")

    intercept(before)
    with Scene(loaded) as scene:
        said, _ = scene.run(first)
    assert left[0] < 0, "the fault did not happen"
    assert set(said.failed) <= {"RuntimeError: a bit has flipped"}
    assert_answered(said, answers)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("what", ["loads", "exchange"])
def test_a_fault_in_a_selection_costs_one_request(loaded, whole, intercept, what, part):
    """In the plan that loads what was chosen, and in the one that exchanges it."""
    answers, first, _ = whole
    failed = []

    def before(operation, plan, number):
        have = {type(each) for each in plan}
        loads = kinds.LoadBlock in have and kinds.UnmapChunk not in have
        moves = {kinds.UnmapChunk, kinds.MapChunk} <= have and kinds.SaveBlock not in have
        fits = loads if what == "loads" else moves
        if not failed and fits and number == int(part * (len(plan) - 1)):
            failed.append(plan)
            raise RuntimeError("a bit has flipped")

    intercept(before)
    with Scene(loaded) as scene:
        said, _ = scene.run(first)
    assert failed, "there was no such plan"
    assert_answered(said, answers)


@pytest.mark.parametrize("part", PARTS)
def test_host_memory_that_is_refused_costs_one_request(loaded, whole, monkeypatch, part):
    """At the first, a middle and the last row that is saved."""
    answers, first, seen = whole
    rows = seen[kinds.SaveBlock] + seen[kinds.SaveRecurrent]
    left, add = [1 + int(part * (rows - 1))], HostMemory.add

    def refuse(memory, identity, nbytes):
        left[0] -= 1
        if left[0] == 0:
            raise CapacityError("the host has no bytes more")
        add(memory, identity, nbytes)

    monkeypatch.setattr(HostMemory, "add", refuse)
    with Scene(loaded) as scene:
        said, _ = scene.run(first)
    assert left[0] <= 0, "there were so many rows"
    assert_answered(said, answers)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kinds.SpillSaved, marks=pytest.mark.long, id="spill"),
        pytest.param(kinds.FetchSaved, id="fetch"),
    ],
)
def test_a_fault_at_an_operation_of_the_disk_costs_one_request(
    loaded, whole, intercept, tmp_path, kind
):
    answers, first, _ = whole
    record = salt_record(loaded, SLICE)

    def opened():
        return Scene(loaded, DiskCache.open(tmp_path / "prefix", record, 1 << 30))

    with opened() as scene:
        scene.run(first)
    left = [1]

    def before(operation, plan, number):
        left[0] -= type(operation) is kind
        if left[0] == 0:
            left[0] = -1
            raise RuntimeError("a bit has flipped")

    intercept(before)
    with opened() as scene:
        again = scene.ask("second", [*first, *range(MORE)])
        scene.ask("third", [*again, *range(MORE)])
        assert scene.engine.stats()["running"] == 0
    assert left[0] < 0, "the fault did not happen"
    assert len(scene.said.failed) <= 1
    reused, tokens = scene.said.answers["second"]
    assert tokens == answers["second", reused]


@pytest.mark.long
@pytest.mark.parametrize("delay", [0.0, 0.2])
def test_a_process_that_is_killed_leaves_whole_points_and_no_others(repo, cases, tmp_path, delay):
    """Killed while it pages and writes, each time on the folder that the last one left."""
    folder, model = tmp_path / "prefix", cases / "qwen35.gguf"
    program = str(repo / "tests/support/paged_killed.py")
    for seed in range(2):
        words = [sys.executable, program, str(model), str(folder), str(100 * seed)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "written\n"
            time.sleep(delay)
            process.kill()
    assert PrefixFolder(folder).check(lambda *_: None) == []
    loaded = paged_killed.load(model, Registry.discover(load_settings()))
    engine = paged_killed.open_engine(loaded, folder)
    before = engine.stats()["disk_points"]
    paged_killed.chat(engine, 0)
    stats = engine.stats()
    engine.close()
    engine.check_integrity()
    assert before > 0
    assert stats["disk_fetches"] > 0, "the first turn is there"
    assert stats["disk_drops_lost"] == 0
