"""Chunks scored by what the bundled model computed, from its own paged state."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from kinfolk.cli.main import BUILT_IN
from kinfolk.descriptors import OpBackend
from kinfolk.engine.input_batch import build_input_batch
from kinfolk.engine.loading import load_model
from kinfolk.engine.qk_scorer import QkScorer
from kinfolk.engine.sizing import state_bytes
from kinfolk.loader import Provided
from kinfolk.nn.queries import QueryKind
from kinfolk.ops.binding import Ops
from kinfolk.plans import Codec, Paged, Section, StatePlan
from kinfolk.registry import Registry
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.settings import load_settings
from kinfolk.state.operations import DigestChunk
from kinfolk.state.score_layers import digest_chunk_bytes
from kinfolk_kernels.chunk_digest.op import KeyDigest
from kinfolk_kernels.codecs import numbers
from kinfolk_kernels.paged_attention.torch_backend import gated_attention

CPU = torch.device("cpu")
CHUNKS, NEEDLE = 12, 4
ATTENDING = 2
"""Layers of the bundled model that attend."""

RECORDED = []
"""Queries of every call of attention; a back end is a function, so it has no other place."""


def recorded(arguments, q, *operands):
    RECORDED.append((arguments, q))
    return gated_attention(arguments, q, *operands)


@pytest.fixture(scope="module")
def registry():
    found = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    backend = OpBackend("gated_attention", "recorded", f"{__name__}:recorded", priority=1000)
    recording = Provided(backend, "test", "a test")
    return replace(found, op_backends=(*found.op_backends, recording))


@pytest.fixture(scope="module", params=["f32", "q8_0"])
def run(request, registry):
    """The bundled model, its state when it has read a text, the text's lease, and the queries of
    the last slice by layer. The end of the text repeats ids that are in chunk ``NEEDLE``."""
    settings = load_settings(
        device="cpu",
        dtype="f32",
        slots=2,
        context=2048,
        kv_codec=request.param,
        kvflash=1024,
        kvflash_burst=1,
        kvflash_layers=ATTENDING,
    )
    loaded = load_model(registry.bundled_model(), settings, registry)
    chance = random.Random(1)
    ids = [chance.randrange(300, loaded.config.vocabulary - 300) for _ in range(24)]
    tokens = [chance.randrange(300, 2000) for _ in range(CHUNKS * 64)]
    tokens[NEEDLE * 64 + 20 : NEEDLE * 64 + 44] = ids
    tokens += ids[:13]
    kv_cache, state = loaded.new_state()
    lease = kv_cache.open(len(tokens))
    batch = None
    for start in range(0, len(tokens), 512):
        part = tuple(tokens[start : start + 512])
        RECORDED.clear()
        kv_cache.tables.extend(lease, start + len(part))
        state.apply(kv_cache.take_operations())
        item = Item(lease, "text", ItemKind.PREFILL, part, start)
        batch = build_input_batch([item], state).batch
        with torch.inference_mode():
            loaded.model.forward(batch, state)
        kv_cache.tables.advance(lease, start + len(part))
    blocks = dict(kv_cache.tables.table(lease, 0))
    return loaded, state, lease, batch, blocks, list(RECORDED), len(tokens)


@pytest.fixture(scope="module")
def scored(run):
    """The scorer of the state, the queries that the model kept there, and the scores by them."""
    _, state, lease, _, blocks, _, length = run
    scorer, places = state.scorer, torch.arange(CHUNKS, dtype=torch.int32) + 5
    chunks = [DigestChunk(blocks[n], blocks[0], int(places[n])) for n in range(CHUNKS)]
    scorer.compress(state, chunks)
    queries = scorer.queries(lease.slot, length, 8)
    return scorer, queries, scorer.scores(queries, places)


def test_queries_are_those_of_the_last_rows(run, scored):
    calls = run[-2]
    _, queries, _ = scored
    for index, (_, of_layer) in enumerate(calls):
        assert torch.equal(queries[:, index], of_layer[-8:])


def test_scores_are_the_same_in_whatever_order_the_last_rows_come(run, scored):
    _, _, lease, _, _, _, length = run
    scorer, queries, scores = scored
    shuffled = scorer.queries(lease.slot, length, 8, in_order=False)
    assert not torch.equal(shuffled, queries)
    found = scorer.scores(shuffled, torch.arange(CHUNKS, dtype=torch.int32) + 5)
    assert float((found - scores).abs().max()) < 1e-6
    assert torch.equal(scorer.queries(lease.slot, length, 7, in_order=False), queries[1:])


def test_the_chunk_that_the_text_goes_back_to_is_the_best_but_for_the_ends(scored):
    _, _, scores = scored
    assert scores.shape == (CHUNKS,)
    assert int(scores[1:-1].argmax()) + 1 == NEEDLE


def test_scores_are_near_those_of_exact_keys(run, scored):
    _, state, _, _, blocks, calls, _ = run
    scorer, queries, scores = scored
    best = torch.zeros(CHUNKS)
    at = [blocks[chunk] for chunk in range(CHUNKS)]
    for index, layer in enumerate(scorer.layers):
        keys = numbers(state.paged(layer).pool("k"), lambda plane: plane[at]).float()
        keys = keys.repeat_interleave(queries.shape[2] // keys.shape[1], 1)
        products = torch.einsum("rhd,chnd->rhcn", queries[:, index].float(), keys)
        shares = (products * calls[index][0].scale).flatten(2).softmax(-1)
        best = torch.maximum(best, shares.view(products.shape).sum(-1).flatten(0, 1).amax(0))
    # Two bits are off by a third of what is left of a key; 0.085 was measured.
    assert float((scores - best).abs().max()) < 0.15
    assert int(best[1:-1].argmax()) + 1 == NEEDLE


def test_memory_is_what_the_planner_counts(run, scored):
    limits = run[0].limits
    scorer, *_ = scored
    assert limits.scored.chunk_bytes == len(scorer.layers) * digest_chunk_bytes(
        run[0].plan.paged(scorer.layers[0]).section("k")
    )
    assert scorer.ring.nbytes == (limits.slots + 1) * limits.scored.slot_bytes
    counted = state_bytes(run[0].plan, limits)["scores of chunks"]
    assert scorer.nbytes + limits.scored.work_bytes == counted
    assert scorer.nbytes == limits.digests * limits.scored.chunk_bytes + scorer.ring.nbytes


def test_digests_of_others_are_scored_in_their_order(scored):
    scorer, queries, scores = scored
    given = KeyDigest(scorer.keys.codes[5 : 5 + CHUNKS], scorer.keys.scales[5 : 5 + CHUNKS])
    index = torch.arange(CHUNKS, dtype=torch.int32)
    assert torch.equal(scorer.scores(queries, index, given), scores)


def test_more_chunks_than_fit_a_launch_are_compressed(run, scored):
    """In several launches, each chunk in its place."""
    _, state, _, _, blocks, _, _ = run
    scorer = small_scorer(run, places=200)
    chunks = [DigestChunk(blocks[n % CHUNKS], blocks[0], n) for n in range(200)]
    scorer.compress(state, chunks)
    for place in range(200):
        assert torch.equal(scorer.keys.codes[place], scored[0].keys.codes[5 + place % CHUNKS])


def test_what_is_freed_is_zero_when_it_is_allocated_again(run):
    _, state, _, _, blocks, _, _ = run
    scorer = small_scorer(run, places=2)
    scorer.compress(state, [DigestChunk(blocks[1], blocks[0], 1)])
    assert scorer.keys.codes.any()
    before = scorer.nbytes
    scorer.free()
    assert scorer.nbytes == 0
    scorer.allocate()
    assert scorer.nbytes == before
    assert not scorer.keys.codes.any()


def test_every_number_of_rows_is_warmed_up(run):
    scorer, state, kinds = small_scorer(run, places=2), run[1], []

    class Warmup:
        def before(self, kind, body):
            kinds.append(kind)
            body()

    scorer.warm_up(Warmup(), state)
    assert kinds == ["digests of chunks", *[("scores of chunks", rows) for rows in range(1, 9)]]
    assert not scorer.keys.codes.any()


def small_scorer(run, places):
    loaded = run[0]
    layers, sizes = loaded.limits.scored.layers, {"places": places, "slots": 1, "device": CPU}
    return QkScorer(loaded.ops, loaded.plan, layers, loaded.queries, **sizes)


def test_layers_that_store_keys_in_other_ways_are_refused():
    sections = [Section("k", 2, 64, Codec(format)) for format in ("f32", "f16")]
    plan = StatePlan(tuple(Paged((section,)) for section in sections))
    kind = QueryKind(4, torch.float32, 0.1)
    with pytest.raises(ValueError, match=r"layers \(0, 1\) store keys of different shapes"):
        QkScorer(Ops([]), plan, (0, 1), kind, places=1, slots=1, device=CPU)
