"""Steps in buckets: the same numbers as steps of their own size, and a constant number of buckets.

On the CPU nothing is recorded, and everything else is as on a GPU: static buffers, padding, changes
of tables, sampled sequences, outputs.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from kinfolk.engine.executor import Bucket
from kinfolk.engine.history import History
from kinfolk.engine.loading import load_model
from kinfolk.engine.model_runner import ModelRunner
from kinfolk.errors import EngineError
from kinfolk.plans import PoolRule, SlotMapping
from kinfolk.sched.plan import Item, ItemKind, StepPlan
from kinfolk.sched.request import Request, Sampling
from kinfolk.settings import load_settings

FAMILIES = ("qwen35", "qwen35moe", "gemma4", "laguna")
GREEDY = Sampling()
WARM = Sampling(temperature=0.9, top_p=0.9, seed=5)
SAMPLINGS = [
    GREEDY,
    WARM,
    Sampling(temperature=1.2, top_k=7, min_p=0.05, seed=2),
    Sampling(repetition_penalty=1.3, temperature=0.8, seed=3),
    Sampling(logprobs=2),
]
TREE = (-1, 0, 0, 1, 2, 2)

EXACT = torch.backends.cpu.get_cpu_capability() == "DEFAULT"
"""Whether a number does not depend on its place in a tensor: vector units compute the exponentials
at the end of a tensor otherwise than those before it."""


def assert_same(one, other):
    """Bit for bit where that can be had."""
    if EXACT:
        assert torch.equal(one, other)
    else:
        assert float((one - other).float().norm()) <= 1e-5 * float(other.float().norm())


def alone(arguments, run):
    """The op on one row at a time: libraries round a product of several rows otherwise."""

    def rows(*operands):
        rows = range(len(operands[0]))
        return together([run(*(operand[i : i + 1] for operand in operands)) for i in rows])

    return rows


def together(parts):
    if isinstance(parts[0], tuple):
        return tuple(map(torch.cat, zip(*parts, strict=True)))
    return torch.cat(parts)


ALONE = dict.fromkeys(("linear", "route", "experts"), alone)


@pytest.fixture(scope="module")
def model(registry, cases, wrapped_ops):
    """``model(family)``: its small model, every row of which is computed alone."""
    opened = {}

    def open_model(family):
        if family not in opened:
            settings = load_settings(device="cpu", dtype="f32", context=512, slots=8, graphs="on")
            with wrapped_ops(**ALONE):
                loaded = load_model(cases / f"{family}.gguf", settings, registry)
            free = tuple(PoolRule(window, sink=0, tail=0) for window in loaded.plan.windows)
            opened[family] = replace(loaded, mapping=SlotMapping(free))
        return opened[family]

    return open_model


class Side:
    """One runner with its own toy."""

    def __init__(self, loaded, capture=None):
        self.loaded = loaded
        self.kv_cache, self.state = loaded.new_state()
        self.runner = ModelRunner(loaded, self.state)
        if capture is not None:
            self.runner.executor.capture = capture
        self.histories = {}

    def kept(self, lease):
        found = [tensor[lease.slot] for tensor in self.state._recurrent_tensors()]
        length = self.kv_cache.tables.length(lease)
        for pool in self.state.pools:
            for chunk, block in sorted(pool.tables[lease.slot].items()):
                for section in pool.layout.sections.values():
                    rows = max(0, min(64, length - 64 * chunk))
                    found.append(pool.view(pool.data, section)[block, :, :rows])
        return [x.clone() for x in found]


class Twins:
    """The same steps in buckets and in their own size; whatever they come to must be equal."""

    def __init__(self, first, second, same=assert_same):
        self.sides, self.same = (first, second), same
        self.leases, self.steps = [], 0

    def both(self, do):
        first, second = (do(side) for side in self.sides)
        assert first == second
        return first

    def open(self, sampling=GREEDY, positions=400):
        lease = self.both(lambda side: side.kv_cache.open(positions))
        self.enter(lease, sampling)
        return lease

    def enter(self, lease, sampling):
        request = Request(str(lease), (1, 2, 3), 500, sampling)
        for side in self.sides:
            side.histories[request.id] = History(request)
        self.leases.append(lease)

    def fork(self, lease, sampling=GREEDY):
        forked = self.both(lambda side: side.kv_cache.tables.fork(lease, 400))
        self.enter(forked, sampling)
        return forked

    def release(self, lease):
        for side in self.sides:
            side.kv_cache.tables.release(lease)
        self.leases.remove(lease)

    def evict(self, lease, chunk):
        for side in self.sides:
            side.kv_cache.tables.evict(lease, chunk)

    def run(self, items):
        """``items``: (lease, kind, tokens, parents)."""
        self.steps += 1

        def step(side):
            made = []
            for lease, kind, tokens, parents in items:
                start = side.kv_cache.tables.length(lease)
                side.kv_cache.tables.extend(lease, start + len(tokens))
                made.append(
                    Item(lease, str(lease), kind, tuple(tokens), start, budget=9, parents=parents)
                )
            plan = StepPlan(self.steps, tuple(made), side.kv_cache.take_operations())
            results = side.runner.run(plan, side.histories).results
            for item, result in zip(made, results, strict=True):
                assert result.error is None
                side.kv_cache.tables.advance(item.lease, item.start + result.kept)
                side.histories[item.request_id].extend(result.emitted)
            side.kv_cache.check_integrity()
            return results

        results = self.both(step)
        for lease in self.leases:
            for one, other in zip(*(side.kept(lease) for side in self.sides), strict=True):
                self.same(one, other)
        return {result.lease: result.emitted[-1] for result in results if result.emitted}

    def prefill(self, lease, tokens):
        return self.run([(lease, ItemKind.PREFILL, tokens, None)])[lease]

    def decode(self, pending):
        return self.run([(x, ItemKind.DECODE, (t,), None) for x, t in pending.items()])


TWINS = "decoding_beside or verification_beside or way_of_sampling or not_there"


def test_all_of_it_bit_for_bit():
    """The tests of twins again, in a process without vector units."""
    options = ("-q", "-p", "no:cacheprovider", "-n", "0", "-k", TWINS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, __file__],
        env={**os.environ, "ATEN_CPU_CAPABILITY": "default"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture
def twins(model):
    def of(family):
        loaded = model(family)
        return Twins(Side(loaded), Side(replace(loaded, graphs=False)))

    return of


def decode_beside_others(pair, text):
    """Sequences join, fork and leave: 7 steps of decoding, in buckets of 1, 2 and 4 rows."""
    pending = {}
    for number, sampling in enumerate(SAMPLINGS[:3]):
        lease = pair.open(sampling)
        pending[lease] = pair.prefill(lease, text[number : number + 20 + 45 * number])
        pending |= pair.decode(pending)
    first, second, _ = pending
    forked = pair.fork(second, WARM)
    pending[forked] = pending[second]
    pending |= pair.decode(pending)
    pair.release(first)
    del pending[first]
    for _ in range(3):
        pending |= pair.decode(pending)


def verify_beside_others(pair, text, parents):
    """Drafts of 6 and of 2 rows, the first right up to some row, beside a sequence without."""
    leases = [pair.open(sampling) for sampling in (GREEDY, WARM, GREEDY)]
    pending = {x: pair.prefill(x, text[: 30 + 33 * n]) for n, x in enumerate(leases)}
    # What the model will say next, so that some of the drafts are right.
    oracle = pair.fork(leases[0])
    token, right = pending[leases[0]], []
    for _ in range(4):
        token = pair.decode({oracle: token})[oracle]
        right.append(token)
    short = None if parents is None else (-1, 0)
    for wrong in (0, 2, 4):
        draft = [*right[:wrong], 1, 1, 1, 1, 1][:5]
        fork = pair.fork(leases[0])
        found = pair.run(
            [
                (fork, ItemKind.VERIFY, (pending[leases[0]], *draft), parents),
                (leases[1], ItemKind.DECODE, (pending[leases[1]],), None),
                (leases[2], ItemKind.VERIFY, (pending[leases[2]], 7), short),
            ]
        )
        pending[leases[1]], pending[leases[2]] = found[leases[1]], found[leases[2]]
        pair.release(fork)


@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_beside_others_that_join_leave_and_fork(twins, text, family):
    pair = twins(family)
    decode_beside_others(pair, text)
    executor = pair.sides[0].runner.executor
    assert executor.counters.replays == 7
    assert {bucket.rows for bucket in executor.buckets} == {1, 2, 4}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("parents", [None, TREE], ids=["chains", "trees"])
def test_ragged_verification_beside_decoding(twins, text, family, parents):
    pair = twins(family)
    verify_beside_others(pair, text, parents)
    buckets = [b for b in pair.sides[0].runner.executor.buckets if b.kind == "verify"]
    assert buckets
    assert all(bucket.trees == (parents is not None) for bucket in buckets)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=range(len(SAMPLINGS)))
def test_every_way_of_sampling(twins, text, sampling):
    pair = twins("qwen35")
    leases = [pair.open(sampling), pair.open(GREEDY), pair.open(replace(sampling, seed=8))]
    pending = {x: pair.prefill(x, text[:20]) for x in leases}
    for _ in range(4):
        pending |= pair.decode(pending)
    draft = (pending[leases[0]], 1, 2)
    pair.run([(leases[0], ItemKind.VERIFY, draft, None)])


def test_chunks_that_are_not_there(twins, text):
    pair = twins("qwen35")
    lease, other = pair.open(), pair.open()
    pending = {lease: pair.prefill(lease, text * 2), other: pair.prefill(other, text[:70])}
    for chunk in (1, 3):
        pair.evict(lease, chunk)
        for _ in range(2):
            pending |= pair.decode(pending)


def test_steps_without_a_bucket_run_in_their_own_size(twins, text):
    pair = twins("qwen35")
    lease = pair.open()
    token = pair.prefill(lease, text[:10])
    runner = pair.sides[0].runner
    before = runner.counters
    pair.run([(lease, ItemKind.VERIFY, (token, *text[:63]), None)])
    other = pair.fork(lease)
    pair.run([(x, ItemKind.VERIFY, (token, *text[:40]), None) for x in (lease, other)])
    after = runner.counters
    assert after["replays"] - before["replays"] == 1, "64 rows fit"
    assert after["eager_steps"] - before["eager_steps"] == 1, "82 do not"


def test_more_changes_of_tables_than_a_bucket_holds_are_sent_before_it(twins, text, monkeypatch):
    monkeypatch.setattr("kinfolk.engine.input_batch.MAX_TABLE_CHANGES", 1)
    pair = twins("qwen35")
    leases = [pair.open(), pair.open()]
    pending = {x: pair.prefill(x, text[:63]) for x in leases}
    for _ in range(3):
        pending |= pair.decode(pending)


def test_a_failed_step_leaves_nothing_believed_of_the_device(twins, text):
    pair = twins("qwen35")
    lease = pair.open()
    token = pair.prefill(lease, text[:63])
    side = pair.sides[0]
    forward, calls = side.state.block_tables.enter, []

    def fail(*arguments):
        calls.append(arguments)
        raise RuntimeError("lost")

    side.state.block_tables.enter = fail
    side.kv_cache.tables.extend(lease, 65)
    items = (Item(lease, str(lease), ItemKind.VERIFY, (token, 1), 63),)
    with pytest.raises(RuntimeError, match="lost"):
        side.runner.run(StepPlan(9, items, side.kv_cache.take_operations()), side.histories)
    side.state.block_tables.enter = forward
    pair.sides[1].kv_cache.tables.extend(lease, 65)
    pair.run([(lease, ItemKind.VERIFY, (token, 1), None)])


def counted(running, text, steps):
    """Counters before and after so many steps of requests that come and go, some of them with a
    beginning in common; before these, some steps to get used to them."""
    source, runner, number = random.Random(1), running._runner, 0
    while True:
        count = (1, 4, 2, 3)[number % 4]
        requests = [
            Request(
                f"{number} {index}",
                tuple(text[: 8 + source.randrange(40)]),
                1 + source.randrange(14),
                (GREEDY, WARM)[number // 4 % 2],
                checkpoints=(8,),
                keep=True,
            )
            for index in range(count)
        ]
        for ticket in [running.submit(request) for request in requests]:
            assert list(ticket)[-1].error is None
        number += 1
        if number == 24:
            before = runner.counters
        if number > 24 and runner.counters["steps"] >= before["steps"] + steps:
            return before, runner.counters


def assert_flat(before, after):
    changed = {name: after[name] - count for name, count in before.items()}
    assert changed["captures"] == 0
    assert changed["allocations"] == 0
    assert changed["replays"] + changed["eager_steps"] == changed["steps"]
    assert changed["waits"] == changed["steps"]
    assert changed["replays"] > changed["steps"] // 2


def test_everything_is_flat_over_a_thousand_steps(engine, load, text):
    """Joins, leaves and forks cost uploads; no bucket, no step of its own size but for prompts."""
    with engine(model=load(graphs="on"), slots=4) as running:
        assert_flat(*counted(running, text, 1000))


@pytest.fixture(scope="module")
def invariant(registry, cases):
    settings = load_settings(device="cpu", dtype="f32", context=512, slots=8, batch_invariant=True)
    return load_model(cases / "qwen35.gguf", settings, registry)


def kept_beside(loaded, text, company, place=0):
    """What a sequence keeps of a prompt and eleven steps, at a place among ``company`` others."""
    side = Side(loaded)
    leases = [side.kv_cache.open(300) for _ in range(1 + company)]
    mine, sampled = leases[place], {}
    for lease in leases:
        request = Request(str(lease), (1,), 500, GREEDY if lease == mine else WARM)
        side.histories[request.id] = History(request)
    rows = {lease: text[: 40 + 9 * n] for n, lease in enumerate(leases)}
    rows[mine] = text[:50]
    for step in range(12):
        items = []
        for lease in leases:
            start = side.kv_cache.tables.length(lease)
            tokens = (sampled[lease],) if step else rows[lease]
            kind = ItemKind.DECODE if step else ItemKind.PREFILL
            side.kv_cache.tables.extend(lease, start + len(tokens))
            items.append(Item(lease, str(lease), kind, tuple(tokens), start))
        plan = StepPlan(step, tuple(items), side.kv_cache.take_operations())
        for result in side.runner.run(plan, side.histories).results:
            sampled[result.lease] = result.emitted[-1]
        for item in items:
            side.kv_cache.tables.advance(item.lease, item.start + len(item.tokens))
    return side.kept(mine)


def test_alone_or_at_any_place_beside_seven_others_bit_for_bit(invariant, text):
    """As libraries are: no row is computed alone but for what --batch-invariant does."""
    alone = kept_beside(invariant, text, 0)
    for place in range(8):
        for one, other in zip(alone, kept_beside(invariant, text, 7, place), strict=True):
            assert torch.equal(one, other), f"place {place}"


def refuse(monkeypatch, loaded, op):
    """As on a GPU, where a back end of ``loaded`` cannot be captured."""
    reasons = {op: "its back end reads numbers on the host"}
    monkeypatch.setattr("kinfolk.engine.model_runner.uncapturable_ops", lambda executor: reasons)
    return reasons


def test_an_op_that_no_graph_can_hold_is_named_at_once_and_steps_run_eagerly(
    model, text, monkeypatch
):
    reasons = refuse(monkeypatch, model("qwen35"), "op linear")
    side = Side(model("qwen35"))
    assert side.runner.uncapturable_ops == reasons
    twins = Twins(side, side)
    twins.both = lambda do: do(side)
    lease = twins.open()
    pending = {lease: twins.prefill(lease, text[:10])}
    for _ in range(2):
        pending = twins.decode(pending)
    counters = side.runner.counters
    assert counters["replays"] == counters["captures"] == 0
    assert counters["eager_steps"] == 3


def test_batch_invariant_is_refused_at_once_where_steps_cannot_be_captured(invariant, monkeypatch):
    refuse(monkeypatch, invariant, "op linear")
    with pytest.raises(EngineError, match=r"--batch-invariant needs captured steps; op linear: .*"):
        Side(invariant)


class FailedCapture:
    """A device on which a capture fails."""

    def capture(self, body):
        raise EngineError("a CUDA graph cannot be captured: the cable was pulled")


@pytest.mark.parametrize("name", ["model", "invariant"])
def test_a_failed_capture_is_an_error_of_the_step(request, text, name):
    loaded = request.getfixturevalue(name)
    side = Side(loaded("qwen35") if name == "model" else loaded, FailedCapture())
    twins = Twins(side, side)
    twins.both = lambda do: do(side)
    lease = twins.open()
    pending = {lease: twins.prefill(lease, text[:10])}
    with pytest.raises(EngineError, match="the cable was pulled"):
        twins.decode(pending)
    assert side.runner.counters["eager_steps"] == 1
    assert side.runner.counters["captures"] == 0


def test_a_failed_capture_is_told_to_the_client(engine, load, text):
    running = engine(model=load(graphs="on"))
    running._runner.executor.capture = FailedCapture()
    *events, end = running.submit(Request("a", tuple(text[:10]), 5))
    assert "the cable was pulled" in end.error
    assert sum(len(event.tokens) for event in events) == 1


def test_prompts_and_steps_with_checkpoints_fit_no_bucket():
    decode = Item(None, "", ItemKind.DECODE, (1,), 0)
    assert Bucket.smallest([decode] * 3) == Bucket("decode", 4, 4, 1, trees=False)
    assert Bucket.smallest([decode], least=8) == Bucket("decode", 8, 8, 1, trees=False)
    for item in (replace(decode, kind=ItemKind.PREFILL), replace(decode, stores=((1, 5),))):
        assert Bucket.smallest([decode, item]) is None
