"""Recorded steps on the GPU: bit for bit what the same steps give launch by launch, without a wait
or an allocation, and with --batch-invariant the same in any company."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import executor_scenes as scenes
import numpy as np
import prefix_scenes
import pytest
import torch

from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.buckets import LARGE_ROWS
from kinfolk.engine.cuda_graph import CudaCapture, EagerCapture
from kinfolk.engine.engine import Engine
from kinfolk.engine.executor import GraphExecutor
from kinfolk.engine.loading import load_model
from kinfolk.registry import Registry
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import ItemKind
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings
from kinfolk.synth.plan import find_shape, plan_synthetic
from kinfolk.synth.write import write_synthetic

# One process for all: a model is written, and its kernels compiled, once.
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.xdist_group("graphs")]

SHAPE = "qwen3.5-4b"


@pytest.fixture(scope="module")
def registry():
    return Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())


@pytest.fixture(scope="module")
def text(cases):
    return np.load(cases / "qwen35.npz")["tokens"].tolist()


@pytest.fixture(scope="module")
def load(registry, cases, tmp_path_factory):
    """``load(name, **settings)``: the reference case, or four layers of a released size."""
    families = [provided.value for provided in registry.families.values()]
    synthetic = tmp_path_factory.mktemp("graphs") / "model.gguf"

    def open_model(name, **settings):
        path = cases / f"{'qwen35' if name == 'case' else name}.gguf"
        if name == "synthetic":
            path = synthetic
            if not path.exists():
                write_synthetic(plan_synthetic(find_shape(SHAPE, families), layers=4), path)
        options = {"device": "cuda", "context": 512, "slots": 8, **settings}
        return load_model(path, load_settings(**options), registry)

    return open_model


@pytest.fixture(scope="module")
def synthetic(load):
    return load("synthetic")


@pytest.fixture(autouse=True)
def nothing_waits(monkeypatch) -> Iterator[None]:
    """A replay in which the host waits for the device is an error."""
    replay = GraphExecutor.replay

    def guarded(self, step, tokens=None):
        torch.cuda.set_sync_debug_mode("error")
        try:
            return replay(self, step, tokens)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(GraphExecutor, "replay", guarded)
    yield
    torch.cuda.set_sync_debug_mode("default")


def assert_equal(one, other):
    assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@pytest.fixture
def pair(synthetic):
    """Replays, and the same buffers launch by launch."""
    captured = scenes.Side(synthetic)
    assert captured.runner.uncapturable_ops == {}
    assert isinstance(captured.runner.executor.capture, CudaCapture)
    yield scenes.Twins(captured, scenes.Side(synthetic, EagerCapture()), assert_equal)
    assert captured.runner.counters["replays"] > 0


def test_decoding_is_replayed_bit_for_bit(pair, text):
    scenes.decode_beside_others(pair, text)


@pytest.mark.parametrize("parents", [None, scenes.TREE], ids=["chains", "trees"])
def test_verification_is_replayed_bit_for_bit(pair, text, parents):
    scenes.verify_beside_others(pair, text, parents)


@pytest.mark.parametrize("sampling", scenes.SAMPLINGS, ids=range(len(scenes.SAMPLINGS)))
def test_every_way_of_sampling_is_replayed(pair, text, sampling):
    leases = [pair.open(sampling), pair.open(scenes.GREEDY)]
    pending = {x: pair.prefill(x, text[:20]) for x in leases}
    for _ in range(3):
        pending |= pair.decode(pending)
    pair.run([(leases[0], ItemKind.VERIFY, (pending[leases[0]], 1, 2), None)])


LENGTHS = (1, 2, 7, 15, 16, 17, 63, 64, 65, 66, 127, 128, 129, 300)


def test_mixtures_of_slices_decoding_and_drafts_are_replayed_bit_for_bit(pair, text):
    scenes.mixtures(pair, text, LENGTHS, random.Random(11))


def test_more_prompts_than_512_rows_have_room_for_are_replayed_bit_for_bit(synthetic, text):
    loaded = replace(synthetic, slice_rows=LARGE_ROWS[-1])
    pair = scenes.Twins(scenes.Side(loaded), scenes.Side(loaded, EagerCapture()), assert_equal)
    pair.run([(pair.open(), ItemKind.PREFILL, text[n : n + 90], None) for n in range(8)])
    assert pair.sides[0].runner.counters["eager_steps"] == 0
    assert pair.sides[0].runner.counters["replays"] > 0


@pytest.mark.parametrize("family", ["qwen35", "qwen35moe", "gemma4", "gemma4moe", "laguna"])
@pytest.mark.parametrize("kv_codec", ["bf16", "q8_0"])
def test_mixtures_of_every_family_are_replayed_bit_for_bit(load, text, family, kv_codec):
    loaded = load(family, kv_codec=kv_codec)
    twins = scenes.Twins(scenes.Side(loaded), scenes.Side(loaded, EagerCapture()), assert_equal)
    known = [token % loaded.info.vocabulary for token in text]
    scenes.mixtures(twins, known, LENGTHS[::2], random.Random(5))
    assert twins.sides[0].runner.counters["eager_steps"] == 0


def test_a_prompt_of_any_length_is_replayed_bit_for_bit(load, text):
    loaded = load("case")
    pair = scenes.Twins(scenes.Side(loaded), scenes.Side(loaded, EagerCapture()), assert_equal)
    for length in range(1, 301):
        lease = pair.open()
        pair.prefill(lease, (text * 2)[:length])
        pair.release(lease)
    assert pair.sides[0].runner.counters["eager_steps"] == 0


def test_a_prefix_of_every_length_is_reused(load, text):
    """Bit for bit where reuse begins on the grid of slices. Else as near to float32 as computing
    all of it: few rows are rounded to int8 and more to float16, and of this small model that moves
    a log-probability by up to 0.26."""
    loaded, plain = (load("case", slots=1, checkpoints=checkpoints) for checkpoints in (2, 0))
    exact = load("case", slots=1, checkpoints=0, device="cpu", dtype="f32")
    prefix_scenes.prefixes(loaded, plain, text, range(1, 301), near=0.3, exact=exact)


def test_buckets_are_near_steps_of_their_own_size(synthetic, text):
    """Another number of rows may mean other kernels, which round otherwise."""

    def near(one, other):
        difference = (one.float() - other.float()).norm()
        assert float(difference) <= 3e-2 * float(other.float().norm())

    plain = scenes.Side(replace(synthetic, graphs=False))
    twins = scenes.Twins(scenes.Side(synthetic), plain, near)
    leases = [twins.open(), twins.open(), twins.open()]
    for number, lease in enumerate(leases):
        twins.prefill(lease, text[: 30 + 40 * number])
    for step in range(4):
        # The tokens are given: a near tie must not make the two runs differ.
        run_given(twins, {lease: text[step + n] for n, lease in enumerate(leases)})


def run_given(twins, tokens):
    """A step of decoding whose choices are not compared."""
    compared = twins.both

    def both(do):
        first, _ = (do(side) for side in twins.sides)
        return first

    twins.both = both
    try:
        twins.decode(tokens)
    finally:
        twins.both = compared


def test_a_replay_allocates_nothing(synthetic, text):
    side = scenes.Side(synthetic)
    twins = scenes.Twins(side, scenes.Side(synthetic), assert_equal)
    lease = twins.open(scenes.WARM)
    pending = {lease: twins.prefill(lease, text[:10])}
    for _ in range(2):
        pending = twins.decode(pending)
    executor, seen = side.runner.executor, []
    replay = executor.replay

    def watched(step, tokens=None):
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        outputs = replay(step, tokens)
        seen.append(torch.cuda.memory_stats()["allocation.all.allocated"] - before)
        return outputs

    executor.replay = watched
    for _ in range(20):
        pending = twins.decode(pending)
    assert seen == [0] * 20


def test_counters_are_flat_over_a_thousand_steps(load, text):
    loaded = load("case")
    limits = SchedulerLimits(
        slots=4,
        context=512,
        step_tokens=128,
        slice=32,
        max_draft=0,
        vocabulary=loaded.info.vocabulary,
    )
    with Engine(loaded, limits) as running:
        before, after = scenes.counted(running, text, 1000)
        assert running.uncapturable_ops() == {}
    scenes.assert_flat(before, after)


@pytest.mark.parametrize("sampling", [scenes.GREEDY, scenes.WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("count", [1, 5])
def test_steps_ahead_of_their_tokens_choose_the_same(load, text, sampling, count):
    """Requests that end one after another, by length and by a stop token."""
    loaded, found = load("synthetic", batch_invariant=True), []
    for overlap in (True, False):
        limits = SchedulerLimits(
            slots=8, context=512, vocabulary=loaded.info.vocabulary, overlap=overlap
        )
        with Engine(loaded, limits) as running:
            asked = [
                Request(f"{n}", tuple(text[n : n + 20]), 40 + 9 * n, replace(sampling, seed=n))
                for n in range(count)
            ]
            tickets = [running.submit(request) for request in asked]
            whole = [answer(ticket) for ticket in tickets]
            stop = frozenset({whole[0][17]})
            stopped = answer(running.submit(replace(asked[0], id="stop", stop=stop, keep=True)))
            after = answer(running.submit(replace(asked[0], id="go on", prompt=tuple(text[:90]))))
            found.append((whole, stopped, after))
    assert found[0] == found[1]


def answer(ticket):
    events = list(ticket)
    assert events[-1].error is None
    return [token for event in events[:-1] for token in event.tokens]


def test_alone_or_at_any_place_beside_seven_others_bit_for_bit(load, text):
    loaded = load("synthetic", batch_invariant=True)
    alone = scenes.kept_beside(loaded, text, 0)
    for place in range(8):
        beside = scenes.kept_beside(loaded, text, 7, place)
        for one, other in zip(alone, beside, strict=True):
            assert_equal(one, other)


def test_an_op_that_no_graph_can_hold_is_named_and_the_steps_run(load, text):
    side = scenes.Side(load("case", op="gated_attention=torch"))
    twins = scenes.Twins(side, side, assert_equal)
    twins.both = lambda do: do(side)
    lease = twins.open()
    pending = {lease: twins.prefill(lease, text[:10])}
    for _ in range(2):
        pending = twins.decode(pending)
    assert side.runner.counters["replays"] == 0
    assert list(side.runner.uncapturable_ops) == ["op gated_attention"]
