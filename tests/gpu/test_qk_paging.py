"""Chunks chosen by attention on the device: the numbers of the references, found needles, and only
the usual wait."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from paged_scene import PagedScene

from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.engine import Engine
from kinfolk.engine.loading import load_model
from kinfolk.registry import Registry
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings
from kinfolk.state.copies import CudaStreams
from kinfolk_kernels.chunk_digest.op import KeyDigest
from kinfolk_kernels.chunk_scores.op import ChunkScoresArguments, chunk_scores

pytestmark = pytest.mark.gpu

CYCLES = 300_000
"""Of the device's clock, some hundred microseconds: longer than a copy here takes."""

BUDGET, CONTEXT, NEEDLE = 640, 2048, 4


@pytest.fixture(scope="module", params=["bf16", "q8_0"])
def loaded(request):
    """The bundled model, whose heads are as large as those of released ones."""
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    settings = load_settings(
        device="cuda",
        context=CONTEXT,
        slots=4,
        kvflash=BUDGET,
        kvflash_burst=2,
        kvflash_tau=16,
        kvflash_host=0.5,
        kvflash_policy="qk",
        kv_codec=request.param,
        draft="off",
    )
    return load_model(registry.bundled_model(), settings, registry)


def text(loaded, seed):
    """Random ids of which the last 13 repeat some of chunk ``NEEDLE``."""
    chance = random.Random(seed)
    ids = [chance.randrange(300, loaded.info.vocabulary - 300) for _ in range(24)]
    tokens = [chance.randrange(300, 2000) for _ in range(20 * 64)]
    tokens[NEEDLE * 64 + 20 : NEEDLE * 64 + 44] = ids
    return (*tokens, *ids[:13])


def test_scores_are_those_of_the_reference(loaded):
    """Of the same compressed keys and queries, and the needle is among the best."""
    scene = PagedScene(loaded, slots=1)
    scene.submit(Request("a", text(loaded, 1), 40))
    scorer, compared = scene.state.scorer, 0
    section = loaded.plan.paged(scorer.layers[0]).section("k")
    arguments = ChunkScoresArguments(
        heads=loaded.queries.heads,
        kv_heads=section.heads,
        dim=section.dim,
        scale=loaded.queries.scale,
        rotated=section.codec.rotation != "none",
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    while (plan := scene.scheduler.plan()) is not None:
        result = scene.runner.run(plan, scene.histories)
        for request, scores in zip(plan.scores, result.scores, strict=True):
            digest = KeyDigest(scorer.keys.codes.cpu(), scorer.keys.scales.cpu())
            queries = scorer.queries(request.lease.slot, request.stop, 8).cpu().float()
            places = torch.tensor(request.digests, dtype=torch.int32)
            expected = chunk_scores(arguments, queries, digest, places)
            found = torch.tensor(scores.values)
            assert float((found - expected).abs().max()) < 0.02
            if not compared:
                assert NEEDLE in found[1:-4].argsort(descending=True)[:2] + 1
            compared += 1
        scene.take(scene.scheduler.commit(result))
    assert compared >= 3


def answers(loaded, requests):
    limits = SchedulerLimits(
        slots=4,
        context=CONTEXT,
        step_tokens=512,
        slice=256,
        vocabulary=loaded.info.vocabulary,
    )
    with Engine(loaded, limits) as engine:
        tickets = [engine.submit(each) for each in requests]
        found = [
            [token for event in list(ticket)[:-1] for token in event.tokens] for ticket in tickets
        ]
        stats = engine.stats()
    engine.check_integrity()
    return found, stats


@pytest.mark.parametrize("late", ["main", "copies"])
def test_tokens_are_the_same_however_late_copies_or_steps_are(loaded, monkeypatch, late):
    """Keys are compressed before a block has other bytes, and scores have come with the outputs."""
    request = Request("a", text(loaded, 2), 60)
    found, stats = answers(loaded, [request])
    assert stats["kvflash_recalls"] > 0
    assert stats["kvflash_scorer_failures"] == 0
    name = f"on_{late}"
    monkeypatch.setattr(CudaStreams, name, sleeping(getattr(CudaStreams, name)))
    assert answers(loaded, [request])[0] == found


def sleeping(action):
    def slowly(self, todo):
        def late():
            torch.cuda._sleep(CYCLES)
            return todo()

        return action(self, late)

    return slowly


def test_scores_capture_and_wait_for_nothing_more(loaded):
    request = Request("a", text(loaded, 3), 60)
    again = [replace(request, id=str(number)) for number in range(6)]
    _, stats = answers(loaded, again)
    assert stats["kvflash_selections"] >= 12
    assert stats["waits"] == stats["replays"]
    assert stats["eager_steps"] == 0
    assert stats["kvflash_scorer_failures"] == 0
