"""The block for multi-token prediction in the engine: its drafts change speed and nothing else.

The block's weights are random, so its drafts are seldom right. Where they have to be, the right
tokens are given by hand.
"""

from __future__ import annotations

import pytest
import torch
from executor_scenes import Side
from mtp_bench import CASES, open_model, write_model

from kinfolk.engine.draft_buffers import Lane
from kinfolk.engine.engine import Engine
from kinfolk.engine.history import History
from kinfolk.errors import ModelFormatError, SettingsError, UnsupportedModelError
from kinfolk.gguf.values import Value
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import Item, ItemKind, StepPlan
from kinfolk.sched.request import Request, Sampling

SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.9, top_p=0.95, seed=11),
    Sampling(temperature=1.3, top_k=9, min_p=0.02, seed=4),
    Sampling(temperature=1, repetition_penalty=1.3, frequency_penalty=0.2, seed=5),
]


@pytest.fixture(scope="module", params=["qwen35", "qwen35moe"])
def path(request, tmp_path_factory):
    found = tmp_path_factory.mktemp("mtp") / f"{request.param}.gguf"
    write_model(found, request.param)
    return found


def run(loaded, requests, collect, **limits):
    values = {"slots": 4, "context": 512, "step_tokens": 128, "slice": 32, **limits}
    known = SchedulerLimits(vocabulary=loaded.info.vocabulary, **values)
    with Engine(loaded, known) as engine:
        outcomes = [collect(ticket) for ticket in [engine.submit(each) for each in requests]]
        stats = engine.stats()
    assert stats["draft_failures"] == 0
    return [outcome.tokens for outcome in outcomes], outcomes, stats


@pytest.mark.parametrize("graphs", ["on", "off"])
@pytest.mark.parametrize("tree", [False, True])
def test_tokens_are_those_without_drafts(path, registry, text, collect, tree, graphs):
    many = [
        Request(f"r{i}", tuple(text[: 20 + 13 * i]), 20, SAMPLINGS[i % len(SAMPLINGS)])
        for i in range(4)
    ]
    plain = open_model(path, registry, draft="off")
    expected = [run(plain, [request], collect)[0][0] for request in many]
    shape = {"draft_mode": "tree", "draft_budget": 9} if tree else {"draft_tokens": 5}
    loaded = open_model(path, registry, graphs=graphs, **shape)
    for count in (1, len(many)):
        tokens, outcomes, stats = run(loaded, many[:count], collect)
        assert tokens == expected[:count]
        assert all(outcome.end.usage.drafted > 0 for outcome in outcomes)
        if graphs == "on":
            assert stats["eager_steps"] == 0


def test_a_prompt_that_starts_from_a_checkpoint_gives_the_same_tokens(
    path, registry, text, collect
):
    loaded = open_model(path, registry)
    request = Request("a", tuple(text[:70]), 30, checkpoints=(48,))
    again = Request("b", tuple(text[:70]), 30)
    values = SchedulerLimits(
        slots=2, context=512, step_tokens=128, slice=32, vocabulary=loaded.info.vocabulary
    )
    with Engine(loaded, values) as engine:
        first = collect(engine.submit(request))
        second = collect(engine.submit(again))
    assert second.end.usage.reused == 48
    assert second.tokens == first.tokens
    assert second.end.usage.accepted == first.end.usage.accepted


# -- steps by hand --------------------------------------------------------------------------------


class Hand:
    """One model runner whose steps are given by hand. ``right`` is what is proposed behind the next
    steps in place of the drafter's own choice."""

    def __init__(self, loaded):
        self.side, self.steps, self.right = Side(loaded), 0, []
        self.drafting = self.side.runner.executor.drafting
        self.tables = self.side.kv_cache.tables
        self.draft = loaded.drafter.drafter.draft
        loaded.drafter.drafter.draft = self.propose

    def propose(self, block, view):
        found = self.draft(block, view)
        for depth, token in enumerate(self.right):
            found.tokens[:, depth, 0] = token
        return found

    def open(self):
        return self.enter(self.side.kv_cache.open(300))

    def enter(self, lease):
        request = Request(str(lease), (1,), 500)
        self.side.histories[request.id] = History(request)
        return lease

    def fork(self, lease):
        return self.enter(self.tables.fork(lease, 300))

    def run(self, lease, kind, tokens, proposed=0):
        """Returns the tokens that the step emits."""
        self.steps += 1
        start = self.tables.length(lease)
        shape = {"budget": 40, "proposed": proposed, "propose": True}
        item = Item(lease, str(lease), kind, tuple(tokens), start, **shape)
        self.tables.extend(lease, start + item.rows)
        plan = StepPlan(self.steps, (item,), self.side.kv_cache.take_operations())
        (result,) = self.side.runner.run(plan, self.side.histories).results
        assert result.error is None
        self.tables.advance(lease, start + result.kept)
        self.side.histories[str(lease)].extend(result.emitted)
        return list(result.emitted)

    def scores(self, lease, token):
        """The scores of the drafter's own choice behind ``token``."""
        store = self.drafting.store
        store.drafts.pending[lease.slot] = token
        store.length[lease.slot] = self.tables.length(lease)
        self.side.state.apply(self.side.kv_cache.take_operations())
        buffers = self.drafting.buffers(1)
        buffers.put([Lane(lease.slot, Sampling())])
        buffers.upload()
        with torch.inference_mode():
            return self.draft(buffers.draft_block(store), self.side.state).scores


PROMPT = 40
STEPS = ((3, 0), (0, 2), (2, 3), (0, 0), (5, 1), (4, 0), (0, 0))
"""Right drafts of a step, and wrong ones behind them."""


@pytest.mark.parametrize("graphs", ["on", "off"])
def test_what_is_drafted_does_not_depend_on_the_steps_before(path, registry, text, graphs):
    """Prompts, decoding, drafts that are right in all or in part, and forks."""
    hand = Hand(open_model(path, registry, graphs=graphs, draft_tokens=6))
    guide, lease = hand.open(), hand.open()
    future = hand.run(guide, ItemKind.PREFILL, text[:PROMPT])
    while len(future) < 30:
        future += hand.run(guide, ItemKind.DECODE, future[-1:])
    tokens, kind, width, kept, done = text[:PROMPT], ItemKind.PREFILL, 0, 0, 0
    for right, wrong in STEPS:
        expected, done = future[done : done + kept + 1], done + kept + 1
        hand.right = [*future[done : done + right], *[(future[done + right] + 1) % 700] * wrong]
        assert hand.run(lease, kind, tokens, width) == expected
        pending = future[done - 1]
        fresh, forked = hand.open(), hand.fork(lease)
        hand.run(fresh, ItemKind.PREFILL, [*text[:PROMPT], *future[: done - 1]])
        scores = hand.scores(fresh, pending)
        for each in (lease, forked):
            torch.testing.assert_close(hand.scores(each, pending), scores, **NEAR)
        assert float((hand.scores(guide, pending) - scores).abs().max()) > 100 * NEAR["atol"]
        for each in (fresh, forked):
            hand.tables.release(each)
        tokens, width, kept = [pending], right + wrong, right
        kind = ItemKind.VERIFY if width else ItemKind.DECODE


NEAR = {"rtol": 0, "atol": 2e-3}
"""Hidden states are rounded to bfloat16, and those of other steps may round the other way."""


# -- refusals -------------------------------------------------------------------------------------


def test_a_model_without_the_block_says_so(registry):
    for case in ("qwen35", "gemma4"):
        with pytest.raises(SettingsError) as caught:
            open_model(CASES / f"{case}.gguf", registry)
        assert f"{case}.gguf holds no drafter 'mtp'" in str(caught.value)


def test_a_file_that_promises_a_block_and_has_none_is_refused(tmp_path, registry):
    def remove(arrays):
        for name in [name for name in arrays if name.startswith("blk.5.")]:
            del arrays[name]

    write_model(tmp_path / "a.gguf", change=remove)
    with pytest.raises(ModelFormatError, match=r"'blk\.5\.nextn\.eh_proj\.weight' is missing"):
        open_model(tmp_path / "a.gguf", registry)
    open_model(tmp_path / "a.gguf", registry, draft="off")


def test_more_than_one_block_is_refused(tmp_path, registry):
    def two(keys):
        keys["qwen35.block_count"] = Value("u32", 7)
        keys["qwen35.nextn_predict_layers"] = Value("u32", 2)
        del keys["qwen35.attention.recurrent_layers"]

    write_model(tmp_path / "a.gguf", keys=two)
    with pytest.raises(UnsupportedModelError, match=r"nextn_predict_layers' is 2; only one block"):
        open_model(tmp_path / "a.gguf", registry)


@pytest.mark.parametrize("draft", ["mtp", "mtp,ngram", "auto"])
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("hidden=middle", "--draft-option hidden=middle: must be post or pre"),
        ("head=0", "--draft-option head=0: must be a whole number, at least 1"),
        ("head=many", "--draft-option head=many: must be a whole number"),
        ("mask=3", "--draft-option mask=3: drafter 'mtp' has the options hidden, head"),
    ],
)
def test_an_option_that_does_not_fit_is_refused(path, registry, draft, option, message):
    with pytest.raises(SettingsError) as caught:
        open_model(path, registry, draft=draft, draft_option=option)
    assert message in str(caught.value)


def test_a_drafter_without_options_refuses_them(path, registry):
    with pytest.raises(SettingsError, match=r"drafter 'ngram' has no options"):
        open_model(path, registry, draft="ngram", draft_option="head=5")
    with pytest.raises(SettingsError, match="there is no drafter to have it"):
        open_model(path, registry, draft="off", draft_option="head=5")
