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
from executor_scenes import (
    GREEDY,
    SAMPLINGS,
    TREE,
    Side,
    Twins,
    assert_flat,
    counted,
    decode_beside_others,
    kept_beside,
    mixtures,
    verify_beside_others,
)

from kinfolk.engine.buckets import (
    LARGE_ROWS,
    MAX_VERIFY_ROWS,
    STORES,
    Bucket,
    Buckets,
    usual_draft,
)
from kinfolk.engine.loading import load_model
from kinfolk.errors import EngineError
from kinfolk.plans import PoolRule, SlotMapping
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import Item, ItemKind, StepPlan
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings
from kinfolk_kernels.row_layout import MAX_SHORT_ROWS, LaunchTraits, Segment

FAMILIES = ("qwen35", "qwen35moe", "gemma4", "laguna")


def alone(arguments, run):
    """The op on one row at a time: libraries round a product of several rows otherwise.

    Both twins have most rows in common, and rows of padding are equal: each is computed once.
    """
    known = {}

    def of_row(*operands):
        bits = tuple(operand.numpy().tobytes() for operand in operands)
        if bits not in known:
            known[bits] = run(*operands)
        return known[bits]

    def rows(*operands):
        rows = range(len(operands[0]))
        return together([of_row(*(operand[i : i + 1] for operand in operands)) for i in rows])

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


TWINS = "decoding_beside or mixtures or verification_beside or way_of_sampling or not_there"


def test_all_of_it_bit_for_bit():
    """The tests that TWINS names again, in a process without vector units."""
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


@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_beside_others_that_join_leave_and_fork(twins, text, family):
    pair = twins(family)
    decode_beside_others(pair, text)
    executor = pair.sides[0].runner.executor
    assert executor.counters.eager_steps == 0
    decoding = [bucket for bucket in executor.buckets if bucket.kind == "decode"]
    assert {bucket.rows for bucket in decoding} == {1, 2, 4}


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


@pytest.mark.parametrize("family", ["qwen35moe", "gemma4moe", "laguna"])
def test_large_mixtures_of_a_model_with_long_slices(model, text, family):
    loaded = replace(model(family), slice_rows=LARGE_ROWS[-1])
    pair = Twins(Side(loaded), Side(replace(loaded, graphs=False)))
    first, second, third = (pair.open() for _ in range(3))
    pending = {first: pair.prefill(first, text[:20])}
    tokens = tuple((text * 40)[:340])
    slices = [(x, ItemKind.PREFILL, tokens, None) for x in (second, third)]
    pair.run([(first, ItemKind.DECODE, (pending[first],), None), *slices])
    for lease in (first, second, third):
        pair.release(lease)
    # More than a step of 512 rows has room for.
    pair.run([(pair.open(), ItemKind.PREFILL, tokens[n : n + 90], None) for n in range(8)])
    executor = pair.sides[0].runner.executor
    assert Bucket("mixed", 768, 8, long=11, stores=False) in executor.buckets
    assert executor.counters.eager_steps == 0


def test_chunks_that_are_not_there(twins, text):
    pair = twins("qwen35")
    lease, other = pair.open(resident=7), pair.open()
    pending = {lease: pair.prefill(lease, text * 2), other: pair.prefill(other, text[:70])}
    for chunk in (1, 3):
        pair.evict(lease, chunk)
        for _ in range(2):
            pending |= pair.decode(pending)


def test_the_least_recently_used_captured_step_is_dropped(model, text):
    side = Side(replace(model("qwen35"), captures=2))
    pair = Twins(side, side)
    pair.both = lambda do: do(side)
    lease, counts = pair.open(), []
    token = pair.prefill(lease, text[:5])
    for step in (1, 1, 10, 1, 20, 1):
        tokens = (token, *text[:step]) if step > 1 else (token,)
        kind = ItemKind.PREFILL if step > 1 else ItemKind.DECODE
        token = pair.run([(lease, kind, tokens, None)])[lease]
        counts.append(side.runner.counters["captures"])
    assert counts == [2, 2, 3, 3, 4, 4]
    assert len(side.runner.executor.buckets) == 2


def test_a_step_beside_a_capture_has_no_time(model, text, monkeypatch):
    """A capture takes longer than many steps, which would pass for the time of its size."""
    side = Side(model("qwen35"))
    pair = Twins(side, side)
    pair.both = lambda do: do(side)
    run, timed = side.runner.run, []

    def run_timed(plan, histories):
        before = side.runner.counters["captures"]
        result = run(plan, histories)
        timed.append((side.runner.counters["captures"] - before, result.seconds > 0))
        return result

    monkeypatch.setattr(side.runner, "run", run_timed)
    lease = pair.open()
    token = pair.prefill(lease, text[:5])
    for _ in range(3):
        (token,) = pair.decode({lease: token}).values()
    assert timed == [(1, False), (1, False), (0, True), (0, True)]


@pytest.mark.parametrize("family", FAMILIES)
def test_mixtures_of_slices_decoding_and_drafts(twins, text, family):
    pair = twins(family)
    mixtures(pair, text, (1, 7, 64, 65, 30, 130, 200, 2), random.Random(7))
    assert pair.sides[0].runner.counters["eager_steps"] == 0


def test_more_rows_than_a_bucket_has_run_as_several_captured_parts(twins, text):
    pair = twins("qwen35")
    lease = pair.open()
    token = pair.prefill(lease, text[:10])
    leases = [lease, pair.fork(lease), pair.fork(lease)]
    runner = pair.sides[0].runner
    before = runner.counters
    pair.run([(x, ItemKind.VERIFY, (token, *text[:63]), None) for x in leases])
    after = runner.counters
    assert after["replays"] - before["replays"] == 2, "192 drafted rows"
    assert after["eager_steps"] == before["eager_steps"]


def test_a_slice_of_more_rows_than_any_bucket_runs_in_its_own_size(twins, text, monkeypatch):
    monkeypatch.setattr("kinfolk.engine.buckets.MIXED_ROWS", (8, 16, 32))
    pair = twins("qwen35")
    leases = [pair.open() for _ in range(3)]
    token = pair.prefill(leases[0], text[:10])
    runner = pair.sides[0].runner
    before = runner.counters
    slices = [(x, ItemKind.PREFILL, text[: 8 + 9 * n], None) for n, x in enumerate(leases[1:])]
    pair.run([(leases[0], ItemKind.DECODE, (token,), None), *slices])
    token = pair.prefill(leases[1], text[8:40])
    longer = (leases[2], ItemKind.PREFILL, text[17:50], None)
    pair.run([(leases[0], ItemKind.DECODE, (token,), None), longer])
    after = runner.counters
    assert after["eager_steps"] - before["eager_steps"] == 1
    assert after["replays"] - before["replays"] == 2


def test_more_changes_of_tables_than_a_bucket_holds_are_sent_before_it(twins, text, monkeypatch):
    monkeypatch.setattr("kinfolk.state.tables.MAX_TABLE_CHANGES", 1)
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


def test_everything_is_flat_over_a_thousand_steps(engine, load, text):
    """Joins, leaves, forks, prompts and checkpoints cost uploads only."""
    with engine(model=load(graphs="on"), slots=4) as running:
        assert_flat(*counted(running, text, 1000))


@pytest.fixture(scope="module")
def invariant(registry, cases):
    settings = load_settings(device="cpu", dtype="f32", context=512, slots=8, batch_invariant=True)
    return load_model(cases / "qwen35.gguf", settings, registry)


def test_alone_or_at_any_place_beside_seven_others_bit_for_bit(invariant, text):
    """With the libraries as they are: only --batch-invariant computes rows alone."""
    alone = kept_beside(invariant, text, 0)
    for place in range(8):
        for one, other in zip(alone, kept_beside(invariant, text, 7, place), strict=True):
            assert torch.equal(one, other), f"place {place}"


def refuse(monkeypatch, loaded, op):
    """As on a GPU, where a back end of ``loaded`` cannot be captured."""
    reasons = {op: "its back end reads numbers on the host"}
    monkeypatch.setattr("kinfolk.engine.model_runner.uncapturable_ops", lambda loaded: reasons)
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
    with pytest.raises(EngineError, match="the cable was pulled"):
        twins.prefill(lease, text[:10])
    assert side.runner.counters["captures"] == 0


def test_a_failed_capture_is_told_to_the_client(engine, load, text, monkeypatch):
    monkeypatch.setattr("kinfolk.engine.model_runner.capture_for", lambda device: FailedCapture())
    running = engine(model=load(graphs="on"))
    *events, end = running.submit(Request("a", tuple(text[:10]), 5))
    assert "the cable was pulled" in end.error
    assert not events


def test_the_smallest_bucket_has_room_for_all():
    decode = Item(None, "", ItemKind.DECODE, (1,), 0)
    assert Buckets().smallest([decode] * 3) == Bucket("decode", 4, 4)
    assert Buckets(least=8).smallest([decode]) == Bucket("decode", 8, 8)
    draft = replace(decode, kind=ItemKind.VERIFY, tokens=(1,) * 5)
    assert Buckets().smallest([decode, draft]) == Bucket("verify", 8, 2, 16, drafted=8)
    slice = replace(decode, kind=ItemKind.PREFILL, tokens=(1,) * 70)
    assert Buckets().smallest([decode, slice]) == Bucket("mixed", 96, 2, long=1)
    few = Buckets(slots=4)
    assert few.smallest([draft, slice]) == Bucket("mixed", 96, 8, 16, drafted=32, long=1)
    assert few.smallest([draft] * 3) == Bucket("verify", 16, 4, 16, drafted=16)
    assert Buckets(slots=48).smallest([draft] * 9) == Bucket("verify", 48, 32, 16, drafted=48)
    assert Buckets(slots=48).smallest([draft] * 4) == Bucket("verify", 24, 8, 16, drafted=24)
    one = replace(decode, kind=ItemKind.VERIFY, tokens=(1,) * 2)
    assert few.smallest([one]) == Bucket("verify", 2, 1, 4, drafted=2)
    stored = replace(decode, stores=((1, 5),))
    assert Buckets().smallest([stored]) == Bucket("mixed", 8, 2)
    long = replace(slice, tokens=(1,) * 600)
    assert Buckets().smallest([long]) is None
    assert Buckets(large=8).smallest([long]) == Bucket("mixed", 768, 8, long=11, stores=False)
    assert Buckets(large=8).smallest([long, stored]) == Bucket("mixed", 768, 8, long=11)
    assert Buckets(large=8).smallest([long, draft]) is None
    assert Buckets(large=8).smallest([long, *[decode] * 8]) is None


@pytest.mark.parametrize("slots", [1, 3, 32])
@pytest.mark.parametrize("seed", range(4))
def test_the_traits_of_a_bucket_allow_those_of_its_steps(slots, seed):
    """Launches that the traits exclude are not in a capture."""
    source, sizes = random.Random(f"{slots} {seed}"), Buckets(slots=slots)
    decode = Item(None, "", ItemKind.DECODE, (1,), 0)
    kinds = [ItemKind.DECODE, ItemKind.VERIFY, ItemKind.PREFILL, ItemKind.PREVIEW]
    exact = 0
    for _ in range(600):
        taken = source.sample(kinds, source.randint(1, 3))
        items = []
        for _ in range(source.randint(1, slots)):
            kind = source.choice(taken)
            most = {ItemKind.DECODE: 1, ItemKind.PREFILL: 200}.get(kind, MAX_SHORT_ROWS)
            rows = source.randint(1, source.choice([min(4, most), most]))
            items.append(replace(decode, kind=kind, tokens=(1,) * rows))
        bucket = sizes.smallest(items)
        if bucket is None:
            continue
        segments, start = [], 0
        for number, item in enumerate(items):
            stop = start + item.rows
            segments.append(Segment(number, number, start, stop, 0, item.is_drafted))
            start = stop
        needed, allowed = LaunchTraits.of(segments, trees=False), bucket.traits
        assert needed.single_rows <= allowed.single_rows
        assert bool(needed.draft_rows) == bool(allowed.draft_rows)
        assert needed.draft_rows <= allowed.draft_rows <= bucket.drafted
        assert set(needed.short_counts) <= set(allowed.short_counts)
        exact += not allowed.single_rows
    assert exact or slots > 1


@pytest.mark.parametrize("slots", [1, 2, 4, 5, 8, 12, 32])
@pytest.mark.parametrize(("chain", "tree"), [(15, 0), (15, 32), (0, 20), (3, 0)])
def test_every_step_of_proposed_drafts_is_likely(slots, chain, tree):
    """So a server that has begun captures nothing for them."""
    limits = SchedulerLimits(slots, 600, 512, 256, max_draft=0, proposed_chain=chain)
    limits = replace(limits, proposed_tree=tree)
    sizes = Buckets(drafted=usual_draft(0, chain, tree), slots=slots)
    likely = set(sizes.likely(limits))
    decode = Item(None, "", ItemKind.DECODE, (1,), 0)
    source = random.Random(slots)
    for _ in range(400):
        count = source.randint(1, slots)
        mode = chain if chain and count > 1 else source.choice([chain or tree, tree or chain])
        left, items = MAX_VERIFY_ROWS - slots, []
        for _ in range(count):
            width = min(source.randint(0, mode), left)
            left -= width
            kind = ItemKind.VERIFY if width else ItemKind.DECODE
            items.append(replace(decode, kind=kind, proposed=width, tree=mode == tree))
        assert sizes.smallest(items) in likely


@pytest.mark.parametrize("slots", [1, 2, 4, 5, 8, 12, 40])
def test_ends_of_prompts_that_run_for_their_queries_are_likely(slots):
    limits = SchedulerLimits(slots, 600, 512, 256, max_draft=0, previews=True)
    sizes = Buckets(slots=slots)
    likely = set(sizes.likely(limits))
    preview = Item(None, "", ItemKind.PREVIEW, (1,) * 8, 0, sample=False)
    for count in range(1, min(slots, 8) + 1):
        assert sizes.smallest([preview] * count) in likely


@pytest.mark.parametrize("slots", [2, 4, 8, 12, 40])
def test_slices_beside_proposed_chains_are_likely(slots):
    limits = SchedulerLimits(slots, 600, 512, 256, max_draft=0, proposed_chain=15)
    sizes = Buckets(drafted=15, slots=slots)
    likely = set(sizes.likely(limits))
    draft = Item(None, "", ItemKind.VERIFY, (1,), 0, proposed=3)
    for drafts in range(1, min(slots, 32)):
        for rows in (2, 20, 70, 250):
            slice = replace(draft, kind=ItemKind.PREFILL, tokens=(1,) * rows, proposed=0)
            assert sizes.smallest([draft] * drafts + [slice]) in likely


def test_items_without_room_in_one_bucket_are_divided_in_order():
    decode = Item(None, "", ItemKind.DECODE, (1,), 0)
    slice = replace(decode, kind=ItemKind.PREFILL, tokens=(1,) * 70)
    stored = replace(slice, stores=((70, 5),))
    items = [decode] * 200 + [slice] * 3
    for sizes, counts in ((Buckets(), [128, 75]), (Buckets(most_long=1), [128, 73, 1, 1])):
        parts = sizes.parts(items)
        assert [len(part) for part, _ in parts] == counts
        assert [bucket for _, bucket in parts] == [sizes.smallest(part) for part, _ in parts]
    assert [len(part) for part, _ in Buckets().parts([stored] * (STORES + 1))] == [7, 2]
    long = replace(slice, tokens=(1,) * 513)
    assert Buckets().parts([decode, long]) == [([decode, long], None)]
    prompts = [replace(slice, tokens=(1,) * 128)] * 48
    parts = Buckets(large=128).parts(prompts)
    assert [(len(part), bucket.rows) for part, bucket in parts] == [(32, 4096), (16, 2048)]
