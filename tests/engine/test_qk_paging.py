"""Chunks chosen by the attention of the last rows (``--kvflash-policy qk``)."""

from __future__ import annotations

import os
import random
from dataclasses import replace

import mtp_bench
import pytest
import torch
from paged_scene import PagedScene

from kinfolk import hookimpl
from kinfolk.engine.loading import load_model
from kinfolk.hooks import HookProvider
from kinfolk.sched.plan import ItemKind
from kinfolk.sched.request import Request, Sampling
from kinfolk.score_api import KEEP, Scores
from kinfolk.settings import load_settings
from kinfolk.testing.driver import Driver
from kinfolk.types import CHUNK_POSITIONS
from kinfolk_kernels.codecs import numbers

FAMILIES = ["qwen35", "qwen35moe", "gemma4", "gemma4moe", "laguna"]
BURST = 2
BUDGET = (1 + 4 + BURST + 3) * CHUNK_POSITIONS
CONTEXT = 3072

NEEDLES = int(os.environ.get("QK_NEEDLES", "2"))
"""Texts whose end goes back to a chunk that is away."""


@pytest.fixture(scope="session")
def open_paged(registry, cases):
    """``open_paged(name, policy=None, **settings)``: a small model of a family."""

    def open_model(name="qwen35", policy=None, **settings):
        options = {
            "device": "cpu",
            "dtype": "f32",
            "context": CONTEXT,
            "slots": 4,
            "kvflash": BUDGET,
            "kvflash_burst": BURST,
            "kvflash_tau": 16,
            "draft": "off",
            **settings,
        }
        loaded = load_model(cases / f"{name}.gguf", load_settings(**options), registry)
        if policy is None:
            return loaded
        hooks = loaded.hooks.with_policies([HookProvider("policy of the test", policy)])
        asked = (*hooks.asked("score_chunks"), "qk")
        return replace(loaded, hooks=hooks, residency=replace(loaded.residency, scorers=asked))

    return open_model


def tokens_of(loaded, count, seed=0):
    source = random.Random(seed)
    return tuple(source.randrange(loaded.info.vocabulary) for _ in range(count))


# -- scores ---------------------------------------------------------------------------------------


class Dense:
    """What attention had, as it got it: queries [heads, dim] by layer and position, and the keys of
    each chunk as they were when it was full."""

    def __init__(self):
        self.calls, self.queries, self.keys, self.scale = [], {}, {}, {}

    def wrap(self, arguments, run):
        def recorded(q, pools, arenas, rows, table, epilogue):
            if arguments.window is None:
                self.calls.append((arguments.scale, q.clone()))
            return run(q, pools, arenas, rows, table, epilogue)

        return recorded

    def see(self, scene, plan, result):
        """A step of one sequence has run."""
        (item,), layers = plan.items, scene.loaded.limits.scored.layers
        calls = dict(zip(full_layers(scene.loaded.plan), self.calls, strict=True))
        self.calls.clear()
        for layer in layers:
            self.scale[layer], q = calls[layer]
            for row in range(item.rows):
                self.queries[layer, item.start + row] = q[row]
        for chunk, block in scene.kv_cache.tables.table(item.lease, 0):
            if (chunk + 1) * CHUNK_POSITIONS <= item.start + result.results[0].kept:
                for layer in layers:
                    stored = scene.state.paged(layer).pool("k")
                    keys = numbers(stored, lambda plane, block=block: plane[block].clone())
                    self.keys[layer, chunk] = keys.float()

    def scores(self, layers, chunks, last, change=lambda keys: keys):
        """The largest share of attention that any of the queries of the positions ``last`` gives to
        each chunk, by exact keys or changed ones."""
        best = torch.zeros(chunks)
        for layer in layers:
            rows = torch.stack([self.queries[layer, position] for position in last]).float()
            keys = change(torch.stack([self.keys[layer, chunk] for chunk in range(chunks)]))
            keys = keys.repeat_interleave(rows.shape[1] // keys.shape[1], 1)
            products = torch.einsum("rhd,chnd->rhcn", rows, keys) * self.scale[layer]
            shares = products.flatten(2).softmax(-1).view(products.shape).sum(-1)
            best = torch.maximum(best, shares.flatten(0, 1).amax(0))
        return best


def two_bits(keys):
    """Keys [chunks, heads, 64, dim] less the mean of the first chunk, rotated, in two bits a number
    and a scale a vector, and rotated back: what should be known of them."""
    mean = keys[:1].mean(2, keepdim=True)
    turn = rotation(keys.shape[-1])
    turned = (keys - mean) @ turn
    deviation = turned.square().mean(-1, keepdim=True).sqrt()
    nearest = (turned / (0.996 * deviation)).floor().clamp(-2, 1) + 0.5
    scale = (turned * nearest).sum(-1, keepdim=True) / nearest.square().sum(-1, keepdim=True)
    return nearest * scale.half().float() @ turn.T


def rotation(dim):
    """The orthonormal Hadamard matrix of Sylvester, [dim, dim]."""
    matrix = torch.ones(1, 1)
    while len(matrix) < dim:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / dim**0.5


def full_layers(plan):
    """The layers with full attention, those that share the state of another one too."""
    states = [plan.layers[plan.owner(layer)] for layer in range(len(plan.layers))]
    return [n for n, state in enumerate(states) if getattr(state, "window", 0) is None]


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        *((family, {}) for family in FAMILIES),
        ("qwen35", {"kv_codec": "q8_0"}),
        ("laguna", {"kvflash_layers": 1}),
        ("laguna", {"graphs": "on"}),
    ],
)
def test_scores_are_those_of_a_dense_softmax_over_all_keys(
    open_paged, wrapped_ops, family, settings
):
    """While chunks are away: over the keys as they were when each chunk was full, with the queries
    that attention got in the last eight positions. Two bits are off by a third of a key; with the
    random weights of gemma4, whose products are not scaled, one key gets all attention."""
    dense = Dense()
    with wrapped_ops(gated_attention=dense.wrap):
        loaded = open_paged(family, **settings)
    scene = PagedScene(loaded, slots=1)
    scene.submit(Request("a", tokens_of(loaded, 1200), 100))
    layers, compared, apart, coded = loaded.limits.scored.layers, 0, 0.0, 0.0
    while (plan := scene.scheduler.plan()) is not None:
        result = scene.runner.run(plan, scene.histories)
        dense.see(scene, plan, result)
        for request, scores in zip(plan.scores, result.scores, strict=True):
            chunks = len(request.digests)
            assert not all(request.resident)
            assert chunks == request.length // CHUNK_POSITIONS
            last, found = range(request.stop - 8, request.stop), torch.tensor(scores.values)
            exact, known = (dense.scores(layers, chunks, last, *how) for how in ((), (two_bits,)))
            apart = max(apart, float((found - exact).abs().max()))
            coded = max(coded, float((found - known).abs().max()))
            compared += 1
        scene.take(scene.scheduler.commit(result))
    assert compared >= 6
    assert coded < 1e-4
    assert apart < (1 if family.startswith("gemma") else 0.05)


@pytest.mark.parametrize(
    ("family", "settings"), [("qwen35", {}), ("gemma4", {}), ("laguna", {"kv_codec": "q4_0"})]
)
def test_the_oracle_scores_by_exact_keys_of_all_layers(open_paged, wrapped_ops, family, settings):
    dense = Dense()
    with wrapped_ops(gated_attention=dense.wrap):
        loaded = open_paged(family, kvflash_policy="oracle", **settings)
    assert loaded.residency.scorers == ("oracle",)
    layers = loaded.limits.scored.layers
    assert list(layers) == [n for n in full_layers(loaded.plan) if loaded.plan.owner(n) == n]
    scene = PagedScene(loaded, slots=1)
    scene.submit(Request("a", tokens_of(loaded, 1200), 60))
    compared, apart = 0, 0.0
    while (plan := scene.scheduler.plan()) is not None:
        result = scene.runner.run(plan, scene.histories)
        dense.see(scene, plan, result)
        for request, scores in zip(plan.scores, result.scores, strict=True):
            assert not all(request.resident)
            last = range(request.stop - 8, request.stop)
            exact = dense.scores(layers, len(request.digests), last)
            apart = max(apart, float((torch.tensor(scores.values) - exact).abs().max()))
            compared += 1
        scene.take(scene.scheduler.commit(result))
    assert compared >= 4
    assert apart < 1e-5


# -- queries --------------------------------------------------------------------------------------


@pytest.mark.parametrize("replays", [False, True])
@pytest.mark.parametrize("family", ["qwen35", "gemma4", "laguna"])
def test_of_drafts_and_trees_only_kept_rows_leave_their_queries(open_paged, family, replays):
    """Steps of certain rows, a chain and a tree, of two sequences at once: each slot has what the
    same tokens leave there one by one."""
    loaded = open_paged(family)
    layers = loaded.limits.scored.layers
    drive, plain = Driver(loaded, replays=replays), Driver(loaded)
    first, second = drive.open(), drive.open()
    one, two = plain.open(), plain.open()
    tokens = {first: list(tokens_of(loaded, 60)), second: list(tokens_of(loaded, 47, 1))}
    drive.feed({lease: tokens[lease][:40] for lease in tokens}, rows=17)
    plain.feed({one: tokens[first][:40], two: tokens[second][:40]}, rows=1)
    same_queries(drive, plain, layers, {first: one, second: two})
    drive.draft(
        {first: ([*tokens[first][40:43], 5, 6], None), second: ([tokens[second][40]], None)}
    )
    drive.keep({first: [0, 1, 2], second: [0]})
    plain.feed({one: tokens[first][40:43], two: tokens[second][40:41]}, rows=1)
    same_queries(drive, plain, layers, {first: one, second: two})
    # Rows 0, 2, 4 are kept: the others are rejected branches.
    branches = [tokens[first][43], 7, tokens[first][44], 8, tokens[first][45], 9]
    drive.draft({first: (branches, [-1, 0, 0, 1, 2, 2])})
    drive.keep({first: [0, 2, 4]})
    drive.feed({second: tokens[second][41:43]}, rows=2)
    plain.feed({one: tokens[first][43:46]}, rows=1)
    plain.feed({two: tokens[second][41:43]}, rows=1)
    same_queries(drive, plain, layers, {first: one, second: two})


def same_queries(drive, plain, layers, leases):
    for layer in layers:
        for ours, theirs in leases.items():
            found = drive.state.queries(layer)[ours.slot]
            expected = plain.state.queries(layer)[theirs.slot]
            assert expected.any()
            assert float((found - expected).abs().max()) < 2e-4 * float(expected.abs().max())


class Foresees:
    """Drafts what will come, with every ninth token wrong."""

    def __init__(self, text):
        self.text = text

    def propose(self, known, limit):
        tokens = list(self.text[len(known) : len(known) + limit])
        return [t + (n % 9 == 0) for n, t in enumerate(tokens, len(known))]

    def release(self, known):
        pass


def test_with_drafts_chunks_are_chosen_by_kept_rows(open_paged, wrapped_ops):
    """Scores behind steps of accepted and rejected drafts are those of dense attention of the last
    eight rows that were kept."""
    dense = Dense()
    with wrapped_ops(gated_attention=dense.wrap):
        loaded = open_paged("laguna")
    request = Request("a", tokens_of(loaded, 1000), 120)
    plain = PagedScene(loaded, slots=1)
    plain.submit(request)
    plain.drain()
    dense.calls.clear()
    text = (*request.prompt, *plain.said["a"].tokens)
    scene = PagedScene(loaded, Foresees(text), slots=1, max_draft=6, widths="fixed")
    scene.submit(request)
    layers, drafted = loaded.limits.scored.layers, 0
    while (plan := scene.scheduler.plan()) is not None:
        result = scene.runner.run(plan, scene.histories)
        dense.see(scene, plan, result)
        (item,) = plan.items
        for ask, scores in zip(plan.scores, result.scores, strict=True):
            # None of the last rows of the prompt is kept when they are scored.
            stop = max(ask.stop, item.start + result.results[0].kept)
            last = range(stop - 8, stop)
            known = dense.scores(layers, len(ask.digests), last, two_bits)
            assert float((torch.tensor(scores.values) - known).abs().max()) < 1e-4
            drafted += item.rows > 1
        scene.take(scene.scheduler.commit(result))
    assert drafted >= 3


@pytest.mark.parametrize("tree", [True, pytest.param(False, marks=pytest.mark.long)])
def test_drafts_of_the_device_do_not_disturb_scores(registry, engine, collect, tmp_path, tree):
    """Chains and trees of a drafter with weights: nothing has left yet, and the tokens are those
    without drafts; later, chunks are scored behind steps of either kind."""
    path = tmp_path / "mtp.gguf"
    mtp_bench.write_model(path, "qwen35")
    options = {"context": 1024, "slots": 2, "kvflash": BUDGET, "kvflash_burst": BURST}
    options |= {"kvflash_tau": 16}
    shape = {"draft_mode": "tree", "draft_budget": 9} if tree else {"draft_tokens": 5}
    found = []
    for draft in ({"draft": "off"}, {"draft": "mtp", **shape}):
        loaded = mtp_bench.open_model(path, registry, **options, **draft)
        assert max(loaded.limits.scored.layers) < loaded.config.layers
        limits = {"slots": 2, "context": 1024, "step_tokens": 1024, "slice": 512}
        running = engine(None, loaded, widths="fixed", **limits)
        request = Request("a", tokens_of(loaded, 400, 4), 250)
        found.append(collect(running.submit(request)).tokens)
        stats = running.stats()
        assert stats["kvflash_selections"] > 2
        assert stats["draft_failures"] == stats["kvflash_scorer_failures"] == 0
    plain, drafted = found
    until = loaded.residency.decoding * CHUNK_POSITIONS - 400
    assert drafted[:until] == plain[:until]
    assert len(drafted) == len(plain)


# -- company --------------------------------------------------------------------------------------


def test_a_paged_sequence_equals_a_full_one_while_nothing_has_left(open_paged):
    """Keeping queries and compressing keys changes no number."""
    said = []
    for settings in ({}, {"kvflash": "off"}):
        loaded = open_paged(**settings)
        scene = PagedScene(loaded, slots=1, slice=128)
        room = (BUDGET // CHUNK_POSITIONS - BURST - 2) * CHUNK_POSITIONS
        scene.submit(Request("a", tokens_of(loaded, room - 60), 600))
        for _ in scene.steps():
            if len(scene.said["a"].tokens) >= 50:
                break
        said.append(scene.said["a"].tokens[:50])
    assert said[0] == said[1]


def test_four_sequences_equal_their_solo_runs(open_paged, engine, collect):
    loaded = open_paged(graphs="on")
    limits = {"slots": 4, "context": CONTEXT, "step_tokens": 1024, "slice": 512}
    requests = [Request(str(n), tokens_of(loaded, 760 + 190 * n, n), 40) for n in range(4)]
    solo = [collect(engine(None, loaded, **limits).submit(each)).tokens for each in requests]
    running = engine(None, loaded, **limits)
    tickets = [running.submit(each) for each in requests]
    assert [collect(ticket).tokens for ticket in tickets] == solo
    stats = running.stats()
    assert stats["kvflash_recalls"] >= 2 * len(requests)
    assert stats["kvflash_scorer_failures"] == 0


def test_batch_invariant_requests_are_scored_alike_in_any_company(open_paged, engine, collect):
    loaded = open_paged(batch_invariant=True)
    limits = {"slots": 3, "context": CONTEXT, "step_tokens": 1024, "slice": 512}
    request = Request("a", tokens_of(loaded, 900), 40, Sampling(logprobs=1))
    alone = collect(engine(None, loaded, **limits).submit(request))
    running = engine(None, loaded, **limits)
    others = [running.submit(Request(f"b{n}", tokens_of(loaded, 800, n), 60)) for n in (1, 2)]
    found = collect(running.submit(request))
    for ticket in others:
        ticket.cancel()
    assert found.tokens == alone.tokens
    assert found.logprobs == alone.logprobs


def test_counters_are_flat_while_chunks_are_scored_and_exchanged(open_paged, engine, collect):
    loaded = open_paged(graphs="on", slots=2)
    running = engine(None, loaded, slots=2, context=CONTEXT, step_tokens=1024, slice=64)
    collect(running.submit(Request("warm", tokens_of(loaded, 1000), 40)))
    before = running.stats()
    for number in range(3):
        collect(running.submit(Request(str(number), tokens_of(loaded, 1000, number), 40)))
    after = running.stats()
    gained = {name: after[name] - before[name] for name in after}
    assert gained["kvflash_selections"] >= 6
    assert gained["kvflash_recalls"] > 0
    assert gained["captures"] == gained["allocations"] == gained["eager_steps"] == 0
    assert gained["waits"] == gained["steps"] == gained["replays"]
    assert gained["kvflash_scorer_failures"] == 0


def test_a_chat_goes_on_with_scores_of_all_chunks(open_paged):
    """Turns start from prefixes in host memory. Their chunks keep their compressed keys, or get
    them again when the turn starts."""
    loaded = open_paged(checkpoints=4)
    scene = PagedScene(loaded)
    known = list(tokens_of(loaded, 600))
    for turn in range(5):
        name = f"turn {turn}"
        if turn == 3:  # what is on the device may be lost, such as by parking
            scene.state.apply(scene.scheduler.leave_device())
        scene.submit(Request(name, tuple(known), 40, keep=True, checkpoints=(len(known) - 20,)))
        scene.drain()
        usage = scene.said[name].end.usage
        assert usage.reused > 0 or turn == 0
        known += [*scene.said[name].tokens, *tokens_of(loaded, 100, turn)]
        scene.kv_cache.check_integrity()
    assert {request.reason for request, _ in scene.scores} == {"prefix", "prompt", "interval"}
    for request, scores in scene.scores:
        assert min(request.digests) >= 0
        assert min(scores.values) >= 0


@pytest.mark.parametrize("after", [7, 12])
def test_a_request_that_was_preempted_goes_on_as_if_it_had_not_been(open_paged, after):
    """Wherever between two selections: its queries wait with it."""
    loaded = open_paged(preempt=True, slots=1)
    low = Request("a", tokens_of(loaded, 900), 50, priority=1)
    high = Request("b", tokens_of(loaded, 700, 2), 5, priority=0)
    plain, scene = (PagedScene(loaded, slots=1, preempt=True) for _ in range(2))
    plain.submit(low)
    plain.drain()
    scene.submit(low)
    for _ in scene.steps():
        if high.id not in scene.said and len(scene.said["a"].tokens) >= after:
            scene.submit(high)
        scene.kv_cache.check_integrity()
    assert scene.scheduler.preemptions == 1
    assert len(scene.said["b"].tokens) == 5
    assert scene.said["a"].tokens == plain.said["a"].tokens
    ours = [scores for request, scores in scene.scores if request.request_id == "a"]
    for one, other in zip(ours, (scores for _, scores in plain.scores), strict=True):
        assert list(one.values) == list(other.values)


def test_a_copy_is_scored_by_the_rows_that_it_was_copied_with(open_paged):
    loaded = open_paged()
    drive = Driver(loaded)
    lease = drive.open(200, paged=True)
    drive.feed({lease: tokens_of(loaded, 100)})
    copied = drive.kv_cache.tables.fork(lease, 150)
    drive.apply()
    for layer in loaded.limits.scored.layers:
        ring = drive.state.queries(layer)
        assert torch.equal(ring[copied.slot], ring[lease.slot])
        assert ring[copied.slot].any()
    assert drive.kv_cache.tables.sequence(copied).started == 0


def test_a_parked_model_scores_as_before(open_paged, engine, collect):
    loaded = open_paged()
    running = engine(None, loaded, slots=4, context=CONTEXT, step_tokens=1024, slice=512)
    request = Request("a", tokens_of(loaded, 1300), 60)
    before = collect(running.submit(request)).tokens
    running.park("target")
    running.unpark("target")
    assert collect(running.submit(replace(request, id="b"))).tokens == before
    assert running.stats()["kvflash_scorer_failures"] == 0


# -- policies -------------------------------------------------------------------------------------


class Asked:
    """A policy with a fixed kind of answer."""

    def __init__(self, answer):
        self.answer, self.queries = answer, []

    @hookimpl
    def score_chunks(self, query):
        self.queries.append(query)
        return self.answer(query)


@pytest.mark.parametrize("answered", [False, True])
def test_policies_are_asked_before_the_core_and_get_queries_and_keys(open_paged, answered):
    policy = Asked(lambda query: Scores(torch.ones(query.chunks)) if answered else None)
    loaded = open_paged("laguna", policy)
    scene = PagedScene(loaded, slots=1)
    scene.submit(Request("a", tokens_of(loaded, 1300), 60))
    scene.drain()
    assert len(policy.queries) >= 3
    kind, layers = loaded.queries, loaded.limits.scored.layers
    section = loaded.plan.paged(layers[0]).section("k")
    for query, (request, scores) in zip(policy.queries, scene.scores, strict=True):
        assert query.queries.shape == (8, len(layers), kind.heads, section.dim)
        assert query.keys.places.shape == (query.chunks,)
        assert query.keys.layers == layers
        assert query.keys.codes.shape[1:] == (len(layers), section.heads, 64, section.dim // 4)
        assert (set(scores.values) == {1.0}) == answered
        assert len(request.digests) == query.chunks


def test_a_policy_that_keeps_all_is_not_overruled_by_the_core(open_paged):
    loaded = open_paged("qwen35", Asked(lambda query: KEEP))
    scene = PagedScene(loaded, slots=1)
    scene.submit(Request("a", tokens_of(loaded, 1300), 60))
    scene.drain()
    assert all(scores.keep and scores.values is None for _, scores in scene.scores)
    assert scene.scheduler.prefix_stats()["kvflash_recalls"] == 0


# -- the end of a prompt --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "graphs"),
    [
        ("qwen35", "on"),
        ("gemma4", "on"),
        *((family, "off") for family in FAMILIES),
        *(pytest.param(family, "on", marks=pytest.mark.long) for family in FAMILIES),
    ],
)
def test_rows_that_run_for_their_queries_leave_nothing_else_behind(open_paged, family, graphs):
    """Recurrent state, windows, keys and values: tokens and log-probabilities are those of a run
    without them, if nothing is exchanged."""
    loaded = open_paged(family, Asked(lambda query: KEEP), graphs=graphs)
    said, kinds = [], []
    for previews in (True, False):
        rules = replace(loaded.residency, previews=previews)
        # One after the other: in company rows have other neighbours, and CPUs round otherwise.
        scene = PagedScene(replace(loaded, residency=rules), slots=1)
        for name, length in (("a", 870), ("b", 700)):
            sampling = Sampling(logprobs=1)
            scene.submit(Request(name, tokens_of(loaded, length), 12, sampling))
        kinds.append([item.kind for plan, _ in scene.steps() for item in plan.items])
        said.append([(each.tokens, each.logprobs) for each in scene.said.values()])
    assert [each.count(ItemKind.PREVIEW) for each in kinds] == [2, 0]
    assert said[0] == said[1]


def test_prompts_with_all_chunks_there_are_not_run_twice(open_paged):
    loaded = open_paged()
    scene = PagedScene(loaded, slots=1)
    scene.submit(Request("a", tokens_of(loaded, BUDGET - 200), 700))
    plans = []
    for plan, _ in scene.steps():
        plans += [item.kind for item in plan.items]
        if len(scene.said["a"].tokens) > 4:
            break
    assert ItemKind.PREVIEW not in plans
    assert scene.runner.counters["prefill_rows"] == BUDGET - 200


def test_the_step_for_ends_of_prompts_is_captured_early(open_paged, engine, collect):
    """One step for ends of all lengths."""
    loaded = open_paged(graphs="on", slots=1)
    running = engine(None, loaded, slots=1, context=CONTEXT, step_tokens=1024, slice=512)
    running.warm_up(lambda done, total, what: None)
    before = running.stats()["captures"]
    for number, length in enumerate((769, 800, 831, 832)):
        collect(running.submit(Request(str(number), tokens_of(loaded, length), 2)))
    stats = running.stats()
    assert stats["kvflash_selections"] == 4
    assert stats["captures"] == before


@pytest.mark.parametrize("drafter", ["ngram", None])
def test_other_sequences_draft_beside_rows_that_run_for_their_queries(open_paged, drafter):
    loaded = open_paged(graphs="on")
    request = Request("a", tokens_of(loaded, 300), 60)
    alone = PagedScene(loaded, slots=2)
    alone.submit(request)
    alone.drain()
    text = (*request.prompt, *alone.said["a"].tokens)
    drafting = {"max_draft": 5, "widths": "fixed"} if drafter else {}
    scene = PagedScene(loaded, Foresees(text) if drafter else None, slots=2, **drafting)
    scene.submit(request)
    mixed = 0
    for plan, _ in scene.steps():
        kinds = {item.kind for item in plan.items}
        mixed += ItemKind.PREVIEW in kinds and len(kinds) == 2
        if len(scene.said) == 1 and len(scene.said["a"].tokens) > 5:
            scene.submit(Request("b", tokens_of(loaded, 1200, 3), 10))
    assert mixed == 1
    assert scene.said["a"].tokens == alone.said["a"].tokens
    assert len(scene.said["b"].tokens) == 10


# -- recall ---------------------------------------------------------------------------------------


def test_what_the_prompt_goes_back_to_is_there_for_the_first_token(registry):
    """With trained weights: a text of random ids, of which the prompt begins to repeat some. Their
    chunk has long left the device; the first and the last chunks alone never bring it back."""
    found, repeated = {}, {}
    path = registry.bundled_model()
    for policy in ("qk", "lru"):
        options = {"kvflash": BUDGET, "kvflash_burst": BURST, "kvflash_policy": policy}
        options |= {"device": "cpu", "dtype": "f32", "slots": 1, "context": 2048, "draft": "off"}
        loaded = load_model(path, load_settings(**options), registry)
        found[policy] = repeated[policy] = 0
        for seed in range(NEEDLES):
            chance = random.Random(seed)
            ids = [chance.randrange(300, loaded.info.vocabulary - 300) for _ in range(24)]
            tokens = [chance.randrange(300, 2000) for _ in range(15 * CHUNK_POSITIONS)]
            needle = chance.randrange(2, 7)
            tokens[needle * CHUNK_POSITIONS + 20 : needle * CHUNK_POSITIONS + 44] = ids
            scene = PagedScene(loaded, slots=1)
            scene.submit(Request("a", (*tokens, *ids[:13]), 2))
            for plan, _ in scene.steps():
                if len(scene.said["a"].tokens) == 1:
                    found[policy] += needle in scene.resident(plan.items[0].lease)
            repeated[policy] += scene.said["a"].tokens[0] == ids[13]
    assert found == {"qk": NEEDLES, "lru": 0}
    assert repeated["qk"] > repeated["lru"]
