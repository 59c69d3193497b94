"""Drafters with weights in the engine: proposals on the device change speed and nothing else.

The drafter of these tests proposes right tokens only where its own state, paged and recurrent, is
that of the sequence, so counts of steps show the state and not only the output.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import oracle_drafter
import pytest
import torch
from drafter_scenes import Lanes
from executor_scenes import assert_flat, assert_same, counted

from kinfolk.engine import drafting, score
from kinfolk.engine.buckets import MAX_VERIFY_ROWS
from kinfolk.engine.executor import EagerExecutor
from kinfolk.engine.loading import load_model
from kinfolk.errors import PluginError, SettingsError, UnsupportedModelError
from kinfolk.sched.request import FinishReason, Request, Sampling
from kinfolk.settings import load_settings
from kinfolk.spec.sampling import sample
from kinfolk.testing.row_sampling import RowContext, row_sampling
from kinfolk_kernels.draft_trees.op import DraftTreesArguments

WARM = Sampling(temperature=0.9, top_p=0.95, seed=11)
SAMPLINGS = [
    Sampling(),
    WARM,
    Sampling(temperature=1.3, top_k=9, min_p=0.02, seed=4),
    Sampling(temperature=1, repetition_penalty=1.3, frequency_penalty=0.2, seed=5),
]


def futures_of(requests, solo):
    return [[*request.prompt, *solo(request).tokens] for request in requests]


def several(text, count, sampling=None, new=41):
    return [
        Request(f"r{i}", tuple(text[: 20 + 13 * i]), new, sampling or SAMPLINGS[i % len(SAMPLINGS)])
        for i in range(count)
    ]


def run(running, requests, collect):
    tickets = [running.submit(request) for request in requests]
    return [collect(ticket) for ticket in tickets]


@pytest.mark.parametrize("graphs", ["on", "off"])
@pytest.mark.parametrize("wrong", [0, 1, 2, 3])
def test_right_chains_save_steps_and_wrong_ones_cost_nothing(
    engine, text, solo, collect, drafted, wrong, graphs
):
    many = several(text, 3, Sampling())
    loaded = drafted(futures_of(many, solo), wrong=wrong, settings={"graphs": graphs})
    running = engine(model=loaded)
    for request, outcome in zip(many, run(running, many, collect), strict=True):
        assert outcome.tokens == solo(request).tokens
        assert outcome.end.usage.steps == {0: 5, 1: 40, 2: 20, 3: 14}[wrong]
    assert running.stats()["draft_failures"] == 0
    assert running.stats()["drafts"] > 0
    if graphs == "on":
        assert running.stats()["eager_steps"] == 0


def by_width(text, widths, new):
    """Requests, and the same with a width of drafts for each."""
    many = several(text, 4, new=new)
    bare = [replace(many[width % 4], id=f"w{width}") for width in widths]
    return bare, [replace(one, draft_width=w) for one, w in zip(bare, widths, strict=True)]


@pytest.mark.parametrize(("wrong", "new"), [(0, 41), (1, 20), (5, 41)])
def test_every_width_gives_the_same_tokens(engine, text, solo, collect, drafted, wrong, new):
    """Requests side by side, each with a width of its own."""
    widths = range(1, 17)
    bare, many = by_width(text, widths, new)
    loaded = drafted(futures_of(bare, solo), width=16, depth=16, wrong=wrong)
    outcomes = run(engine(model=loaded, step_tokens=192), many, collect)
    for width, request, outcome in zip(widths, bare, outcomes, strict=True):
        assert outcome.tokens == solo(request).tokens
        usage = outcome.end.usage
        assert usage.steps == usage.emitted - 1 - usage.accepted
        if wrong == 0:
            assert usage.steps == math.ceil(40 / (width + 1))
        assert usage.drafted >= 2 * width, "of the whole width, not of what is left"
        assert (usage.accepted > 0) == (wrong != 1)


@pytest.mark.parametrize(
    ("seeded", "budgets", "keys", "graphs", "new"),
    [
        (False, [1], {}, "off", 4),
        (False, range(1, 64), {}, "on", 9),
        (False, range(1, 64), {"wrong": 4}, "off", 9),
        (False, range(1, 64), {"wrong": 1}, "on", 4),
        (True, range(1, 64, 5), {"chain": True}, "off", 15),
        (True, range(1, 64, 5), {"wrong": 4}, "on", 9),
        (True, range(1, 64, 5), {"wrong": 1}, "off", 4),
    ],
)
def test_every_budget_of_a_tree_gives_the_same_tokens(
    engine, text, solo, collect, drafted, monkeypatch, seeded, budgets, keys, graphs, new
):
    """The most probable trees, and trees that begin with a chain, as planted ones do."""
    known, settings = futures_of(several(text, 4, new=new), solo), {"graphs": graphs}

    def arguments(nodes, chain_seeded, device):
        return DraftTreesArguments(nodes, seeded, device)

    monkeypatch.setattr(drafting, "DraftTreesArguments", arguments)
    bare, many = by_width(text, budgets, new)
    loaded = drafted(known, budget=max(budgets), columns=2, depth=6, settings=settings, **keys)
    running = engine(model=loaded, step_tokens=576)
    for budget, request, outcome in zip(budgets, bare, run(running, many, collect), strict=True):
        assert outcome.tokens == solo(request).tokens
        usage = outcome.end.usage
        assert usage.steps == usage.emitted - 1 - usage.accepted
        if keys == {"chain": True}:
            assert usage.steps == math.ceil((new - 1) / (min(budget, 6) + 1))
        assert usage.drafted in range(budget, 20 * budget, budget), "whole trees only"
        assert (usage.accepted > 0) == (keys != {"wrong": 1})
    assert running.stats()["draft_failures"] == 0


@pytest.mark.parametrize("graphs", ["on", "off"])
@pytest.mark.parametrize(("count", "depth"), [(8, 15), (9, 7), (16, 7), (17, 4), (25, 3), (33, 1)])
def test_a_draft_of_many_lanes_goes_less_deep(
    engine, text, solo, collect, drafted, monkeypatch, count, depth, graphs
):
    """As deep as the rows of a step reach: 128 for all. Whatever is drafted is right."""
    depths: dict[int, set[int]] = {}
    launch_draft = EagerExecutor.launch_draft

    def launched(self, lanes, launch):
        found = launch_draft(self, lanes, launch)
        depths.setdefault(len(lanes), set()).add(found)
        return found

    monkeypatch.setattr(EagerExecutor, "launch_draft", launched)
    bare = several(text, 4, Sampling())
    many = [replace(bare[i % 4], id=f"n{i}") for i in range(count)]
    settings = {"slots": count, "graphs": graphs}
    loaded = drafted(futures_of(bare, solo), width=15, depth=15, settings=settings)
    limits = {"slots": count, "step_tokens": 512, "verify_rows": MAX_VERIFY_ROWS}
    running = engine(model=loaded, **limits)
    for index, outcome in enumerate(run(running, many, collect)):
        assert outcome.tokens == solo(bare[index % 4]).tokens
        assert outcome.end.usage.accepted == outcome.end.usage.drafted
    assert depths[count] == {depth}
    assert running.stats()["draft_failures"] == 0


@pytest.mark.parametrize("count", [17, 33])
@pytest.mark.parametrize("mode", ["auto", "tree"])
def test_trees_of_many_lanes_have_the_nodes_that_there_are(
    engine, text, solo, collect, drafted, count, mode
):
    """20 nodes are asked for; in a draft of 33 lanes, one token deep, there are two candidates."""
    bare = several(text, 4, new=12)
    many = [replace(bare[i % 4], id=f"n{i}", draft_mode="tree") for i in range(count)]
    settings = {"slots": count, "draft_mode": mode}
    loaded = drafted(futures_of(bare, solo), budget=20, columns=2, depth=6, settings=settings)
    limits = {"slots": count, "step_tokens": 512, "verify_rows": MAX_VERIFY_ROWS}
    running = engine(model=loaded, **limits)
    for index, outcome in enumerate(run(running, many, collect)):
        assert outcome.tokens == solo(bare[index % 4]).tokens
        assert outcome.end.usage.accepted > 0
    assert running.stats()["draft_failures"] == 0


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("budget", [None, 14])
def test_requests_of_other_lengths_share_steps(engine, text, solo, collect, drafted, count, budget):
    many = [replace(each, max_new=10 + 9 * i) for i, each in enumerate(several(text, count))]
    loaded = drafted(futures_of(many, solo), budget=budget, columns=2, chain=True)
    # Fewer rows than all of them want: they get other widths.
    running = engine(model=loaded, step_tokens=48)
    for request, outcome in zip(many, run(running, many, collect), strict=True):
        assert outcome.tokens == solo(request).tokens
        assert outcome.end.usage.accepted > 0


@pytest.mark.parametrize("graphs", ["on", "off"])
@pytest.mark.parametrize("budget", [None, 14])
def test_widths_by_cost_change_no_token(engine, text, solo, collect, drafted, budget, graphs):
    many = several(text, 4, new=120)
    loaded = drafted(
        futures_of(many, solo), budget=budget, columns=2, wrong=3, settings={"graphs": graphs}
    )
    running = engine(model=loaded, widths="cost")
    for request, outcome in zip(many, run(running, many, collect), strict=True):
        assert outcome.tokens == solo(request).tokens
        usage = outcome.end.usage
        assert usage.steps == usage.emitted - 1 - usage.accepted


@pytest.mark.parametrize("family", ["qwen35moe", "gemma4", "gemma4moe", "laguna"])
@pytest.mark.parametrize("budget", [None, 24])
def test_every_family_gives_the_same_tokens(
    engine, registry, drafters, cases, text, collect, tmp_path, family, budget
):
    """Windowed layers, shared ones and experts: beyond a window too."""
    options = {"device": "cpu", "dtype": "f32", "context": 512, "slots": 4, "graphs": "on"}
    plain = load_model(cases / f"{family}.gguf", load_settings(**options), registry)
    known = [token % plain.info.vocabulary for token in text]
    many = [
        Request(f"r{i}", tuple(known[: 20 + 60 * i]), 40, (Sampling(), WARM)[i % 2])
        for i in range(3)
    ]
    expected = run(engine(model=plain, slots=4), many, collect)
    futures = [[*one.prompt, *other.tokens] for one, other in zip(many, expected, strict=True)]
    options["draft_model"] = oracle_drafter.write(
        tmp_path / "draft.gguf", futures, wrong=5, columns=2, chain=budget is None
    )
    options |= {"draft_mode": "chain" if budget is None else "tree", "draft_budget": budget or 1}
    loaded = load_model(cases / f"{family}.gguf", load_settings(**options), drafters)
    running = engine(model=loaded, slots=4)
    for one, other in zip(run(running, many, collect), expected, strict=True):
        assert one.tokens == other.tokens
        assert one.end.usage.accepted > 10
    assert running.stats()["draft_failures"] == running.stats()["eager_steps"] == 0


def test_a_drafter_may_be_part_of_the_models_own_file(
    engine, load, registry, text, solo, collect, caplog
):
    spec = oracle_drafter.spec(
        architectures=(),
        prepare="oracle_drafter:prepare_own",
        build="oracle_drafter:OwnDrafter",
    )
    registry = replace(registry, drafters={"oracle": spec})
    loaded = load(registry=registry, draft="oracle")
    assert loaded.drafter.file is loaded.file
    assert "not used" not in caplog.text
    (request,) = several(text, 1, Sampling())
    (outcome,) = run(engine(model=loaded), [request], collect)
    assert outcome.tokens == solo(request).tokens
    assert outcome.end.usage.drafted > 0


def test_a_tree_finds_what_a_chain_misses(engine, text, solo, collect, drafted):
    """The right token is in the second column at every other depth."""
    (request,) = several(text, 1, Sampling())
    futures = futures_of([request], solo)
    (chain,) = run(engine(model=drafted(futures, width=6, columns=2)), [request], collect)
    loaded = drafted(futures, budget=63, columns=2, depth=6)
    (tree,) = run(engine(model=loaded), [request], collect)
    assert chain.tokens == tree.tokens == solo(request).tokens
    assert chain.end.usage.steps == 20
    assert tree.end.usage.steps < 14


@pytest.mark.parametrize("place", range(1, 9))
@pytest.mark.parametrize("budget", [None, 20])
def test_a_stop_token_inside_a_draft_ends_the_output(
    engine, text, solo, collect, drafted, place, budget
):
    request = Request("a", tuple(text[:40]), 20, keep=True)
    expected = solo(request).tokens
    stop = frozenset({expected[place]})
    running = engine(model=drafted([[*request.prompt, *expected]], budget=budget))
    outcome = collect(running.submit(replace(request, stop=stop)))
    assert outcome.tokens == expected[: place + 1]
    assert outcome.end.reason is FinishReason.STOP
    again = Request("b", (*request.prompt, *outcome.tokens, 9), 10)
    assert collect(running.submit(again)).tokens == solo(again).tokens


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 9])
@pytest.mark.parametrize("budget", [None, 20])
def test_no_more_is_emitted_than_was_asked_for(engine, text, solo, collect, drafted, count, budget):
    longer = Request("a", tuple(text[:40]), 20)
    running = engine(model=drafted(futures_of([longer], solo), budget=budget))
    outcome = collect(running.submit(replace(longer, max_new=count)))
    assert outcome.tokens == solo(longer).tokens[:count]
    assert outcome.end.reason is FinishReason.LENGTH


@pytest.mark.parametrize("graphs", ["on", "off"])
@pytest.mark.parametrize("budget", [None, 24])
def test_proposed_rows_are_penalised_as_a_host_counts(
    engine, load, loaded, text, collect, drafted, graphs, budget
):
    sampling = Sampling(
        temperature=1,
        repetition_penalty=1.4,
        presence_penalty=0.5,
        frequency_penalty=0.3,
        logit_bias=((7, 3.0),),
    )
    many = [
        replace(each, sampling=replace(sampling, seed=i, temperature=i % 2))
        for i, each in enumerate(several(text, 3, sampling))
    ]
    plain = engine(model=load(graphs=graphs))
    futures = [
        [*request.prompt, *outcome.tokens]
        for request, outcome in zip(many, run(plain, many, collect), strict=True)
    ]
    model = drafted(
        futures,
        budget=budget,
        columns=2,
        wrong=4,
        chain=budget is None,
        settings={"graphs": graphs},
    )
    running = engine(model=model)
    for request, future, outcome in zip(many, futures, run(running, many, collect), strict=True):
        prompt = len(request.prompt)
        assert outcome.end.usage.accepted > 0
        assert [*request.prompt, *outcome.tokens] == future
        rows = [
            RowContext(
                request.sampling,
                position,
                frozenset(request.prompt),
                Counter(future[prompt:position]),
            )
            for position in range(prompt, len(future))
        ]
        logits = torch.cat(list(score.logits(loaded, future)))[prompt - 1 : -1]
        assert sample(logits, row_sampling(rows, logits.device)).tolist() == outcome.tokens


@pytest.mark.parametrize("graphs", ["on", "off"])
@pytest.mark.parametrize("budget", [None, 12])
def test_logprobs_are_those_without_drafts(engine, text, solo, collect, drafted, budget, graphs):
    many = several(text, 2, replace(WARM, logprobs=3))
    settings = {"graphs": graphs}
    running = engine(
        model=drafted(futures_of(many, solo), wrong=4, budget=budget, settings=settings)
    )
    for request, outcome in zip(many, run(running, many, collect), strict=True):
        expected = solo(request)
        assert outcome.tokens == expected.tokens
        assert outcome.end.usage.accepted > 0
        for one, other in zip(outcome.logprobs, expected.logprobs, strict=True):
            assert one.token == other.token
            assert abs(one.logprob - other.logprob) < 1e-3
            assert [token for token, _ in one.top] == [token for token, _ in other.top]


# -- slots ----------------------------------------------------------------------------------------


def test_a_slot_does_not_inherit_proposals(engine, text, solo, collect, drafted, gate):
    """One slot: others get it while proposals for the first request are stored there."""
    first = Request("first", tuple(text[:40]), 30)
    second = Request("second", tuple(text[3:43]), 20)
    running = engine(model=drafted(futures_of([first, second], solo)), slots=1)
    held = gate(running, hold_after=2)
    ticket = running.submit(first, held)
    held.wait()
    ticket.cancel()
    plain, outcome = run(running, [replace(second, id="plain", draft=False), second], collect)
    assert held.result().end.reason is FinishReason.CANCELLED
    assert plain.tokens == outcome.tokens == solo(second).tokens
    assert (plain.end.usage.drafted, plain.end.usage.steps) == (0, 19)
    assert (outcome.end.usage.drafted, outcome.end.usage.steps) == (7 + 7 + 2, 3)


def test_a_restored_prefix_brings_the_drafters_state(engine, text, solo, collect, drafted):
    """Without its state, the drafter would propose nothing right."""
    first = Request("first", tuple(text[:70]), 10, checkpoints=(66,), keep=True)
    start = [*first.prompt, *solo(first).tokens]
    second = Request("second", (*text[:66], 5, 6, 7), 25)
    third = Request("third", (*start, 8, 9), 25)
    running = engine(model=drafted(futures_of([first, second, third], solo)))
    collect(running.submit(first))
    for request in (second, third):
        outcome = collect(running.submit(request))
        assert outcome.tokens == solo(request).tokens
        assert outcome.end.usage.reused >= 66
        assert outcome.end.usage.steps == 3


def test_windowed_state_of_a_drafter_leaves_with_its_window(engine, text, solo, collect, drafted):
    request = Request("a", tuple(text[:100]), 150)
    running = engine(model=drafted(futures_of([request], solo), window=40))
    outcome = collect(running.submit(request))
    assert outcome.tokens == solo(request).tokens
    assert outcome.end.usage.steps == 19


@pytest.mark.parametrize(("budget", "steps"), [(None, 9), (15, 5)])
def test_drafting_goes_on_to_the_end_of_the_context(
    engine, text, solo, collect, drafted, budget, steps
):
    request = Request("a", tuple((text * 4)[:440]), 72)
    running = engine(model=drafted(futures_of([request], solo), budget=budget))
    outcome = collect(running.submit(request))
    assert outcome.tokens == solo(request).tokens
    assert outcome.end.usage.steps == steps


def test_requests_without_drafts_overlap_and_share_steps(engine, text, solo, collect, drafted):
    fast, slow = (
        Request(name, tuple(text[:50]), 40, draft=name == "fast") for name in ("fast", "slow")
    )
    running = engine(model=drafted(futures_of([fast], solo)))
    one, other = run(running, [fast, slow], collect)
    assert one.tokens == other.tokens == solo(fast).tokens
    assert one.end.usage.steps < 10
    assert (other.end.usage.drafted, other.end.usage.steps) == (0, 39)


# -- steps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [None, 15])
def test_a_fork_has_the_drafters_state_and_its_own_proposals(text, solo, drafted, budget):
    request = Request("a", tuple(text[:70]), 40)
    tokens = solo(request).tokens
    lanes = Lanes(drafted([[*request.prompt, *tokens]], budget=budget))
    lease = lanes.open(request.prompt)
    assert lanes.verify({lease: 7})[lease] == tokens[1:9]
    forked = lanes.fork(lease)
    # Nothing is proposed for the fork, whose slot is another one.
    assert lanes.verify({forked: 0})[forked] == tokens[9:10]
    assert lanes.verify({forked: 7, lease: 3}) == {forked: tokens[10:18], lease: tokens[9:13]}
    lanes.side.kv_cache.tables.release(lease)
    again = lanes.fork(forked)
    assert lanes.verify({again: 0, forked: 2}) == {again: tokens[18:19], forked: tokens[18:21]}


@pytest.mark.parametrize("budget", [None, 20])
def test_padded_steps_and_steps_of_their_own_size_are_equal(text, solo, drafted, budget):
    """Tokens, kept rows, and the state of model and drafter, with slices beside the drafts."""
    requests = several(text, 3, Sampling())
    futures = futures_of(requests, solo)
    sides = [
        Lanes(drafted(futures, budget=budget, columns=2, wrong=5, settings={"graphs": graphs}))
        for graphs in ("on", "off")
    ]
    width = 7 if budget is None else budget
    opened = []
    for request in requests:
        leases = [lanes.open(request.prompt) for lanes in sides]
        assert leases[0].slot == leases[1].slot
        opened.append(leases)
        for rows in (width, 0, 3, width):
            found = [
                lanes.verify({pair[side]: max(0, rows - i) for i, pair in enumerate(opened)})
                for side, lanes in enumerate(sides)
            ]
            assert list(found[0].values()) == list(found[1].values())
            for one, other in opened:
                pairs = zip(sides[0].side.kept(one), sides[1].side.kept(other), strict=True)
                for mine, theirs in pairs:
                    assert_same(mine, theirs)
    assert sides[0].side.runner.counters["eager_steps"] == 0
    assert sides[1].side.runner.counters["captures"] == 0


@pytest.mark.parametrize("budget", [None, 12])
def test_no_step_captures_or_waits_again(engine, text, solo, drafted, budget):
    known = [[*text, *text]]
    loaded = drafted(known, budget=budget, settings={"graphs": "on", "slots": 4})
    loaded = replace(loaded, captures=500)
    running = engine(model=loaded, slots=4)
    before, after = counted(running, text, 200)
    assert_flat(before, after)
    assert after["drafts"] > before["drafts"]


# -- faults ---------------------------------------------------------------------------------------


def test_a_drafter_that_fails_harms_nobody(engine, text, solo, collect, drafted, caplog):
    many = several(text, 2)
    loaded = drafted(futures_of(many, solo))

    class Broken(type(loaded.drafter.drafter)):
        def __init__(self, other):
            self.__dict__.update(other.__dict__)

        def draft(self, block, view):
            raise RuntimeError("no idea")

    broken = replace(loaded.drafter, drafter=Broken(loaded.drafter.drafter))
    running = engine(model=replace(loaded, drafter=broken))
    for request, outcome in zip(many, run(running, many, collect), strict=True):
        assert outcome.tokens == solo(request).tokens
        assert outcome.end.usage.drafted == 0
    assert running.stats()["draft_failures"] > 1
    assert (
        sum("no idea" in record.getMessage() + str(record.exc_info) for record in caplog.records)
        == 1
    )


def test_errors_name_file_and_numbers(drafted, text, load, drafters, cases, tmp_path):
    futures = [list(text[:9])]
    for keys, options, kind, words in (
        ({"feature": 61}, {}, UnsupportedModelError, "layer 61, the model has 5 layers"),
        ({"target_width": 999}, {}, UnsupportedModelError, "rows of 999, the model has"),
        ({"vocabulary": 99}, {}, UnsupportedModelError, "a vocabulary of 99, the model has"),
        ({"fill": 10**6}, {}, UnsupportedModelError, "fills blocks with token 1000000, the model"),
        (
            {"shared": 1},
            {},
            UnsupportedModelError,
            "its state cannot follow the model's",
        ),
        ({"depth": 3}, {"width": 4}, SettingsError, "--draft-tokens 4: .* at most 3 tokens"),
    ):
        with pytest.raises(kind, match=words) as found:
            drafted(futures, **options, **keys)
        assert "draft.gguf" in str(found.value)
    with pytest.raises(PluginError, match=r"drafter 'oracle'.*: \(0, 0\) names a layer twice"):
        drafted(futures, feature=0)
    with pytest.raises(SettingsError, match=r"absent\.gguf: there is no such file"):
        load(registry=drafters, draft_model=tmp_path / "absent.gguf")
    with pytest.raises(SettingsError, match=r"qwen35\.gguf: architecture 'qwen35' is a model, not"):
        load(registry=drafters, draft_model=cases / "qwen35.gguf")
    with pytest.raises(
        SettingsError, match=r"qwen35.gguf holds no drafter 'oracle'; name the file"
    ):
        load(registry=drafters, draft="oracle")
    with pytest.raises(SettingsError, match="no drafter of --draft ngram has weights; leave out"):
        load(registry=drafters, draft="ngram", draft_model=tmp_path / "draft.gguf")


def test_a_drafter_cannot_be_run(drafters, tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"is a drafter, 'oracle': .* --draft-model"):
        drafters.family_for(oracle_drafter.ARCHITECTURE)


def test_a_model_without_features_is_refused_by_name(drafted, text, monkeypatch):
    from kinfolk.nn.decoder import Decoder

    monkeypatch.delattr(Decoder, "features")
    with pytest.raises(UnsupportedModelError, match="family 'qwen35' has none"):
        drafted([list(text[:9])])


def test_state_and_features_are_counted(drafted, load, text):
    from kinfolk.engine.memory import work_bytes
    from kinfolk.plans import WeightPlan

    loaded = drafted([list(text[:9])], budget=10)
    plain = load()
    assert loaded.plan.layers[: len(plain.plan.layers)] == plain.plan.layers
    assert len(loaded.plan.layers) == len(plain.plan.layers) + 2
    assert loaded.plan.layout_hash() != plain.plan.layout_hash()
    assert loaded.limits.tree_rows >= loaded.limits.slots * 16
    nothing = WeightPlan(())
    assert work_bytes(nothing, 10, 0, 300) - work_bytes(nothing, 10, 0) == 10 * 300 * 2
