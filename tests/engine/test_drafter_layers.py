"""A drafter with layers of attention: what it proposes depends on the text alone, whatever steps
computed its state, and on no other sequence."""

from __future__ import annotations

from dataclasses import replace

import attending_drafter
import pytest
import torch
from executor_scenes import Side

from kinfolk.engine.draft_buffers import Lane
from kinfolk.engine.history import History
from kinfolk.sched.plan import Item, ItemKind, StepPlan
from kinfolk.sched.request import Request, Sampling

DEPTH = 3


@pytest.fixture(scope="module")
def model(registry, load, loaded, tmp_path_factory):
    """``model(tree=False, window=0, graphs="off")``: the model with an attending drafter."""
    drafters = {**registry.drafters, "attending": attending_drafter.spec()}
    registry = replace(registry, drafters=drafters)

    def open_model(*, tree=False, window=0, graphs="off"):
        path = tmp_path_factory.mktemp("drafter") / "draft.gguf"
        attending_drafter.write(path, loaded.config.width, depth=DEPTH, window=window)
        mode = {"draft_mode": "tree", "draft_budget": 8} if tree else {"draft_mode": "chain"}
        return load(registry=registry, draft_model=path, graphs=graphs, **mode)

    return open_model


class Hand:
    """One model runner whose steps are given by hand; every item is drafted for."""

    def __init__(self, loaded):
        self.side, self.tree, self.steps = Side(loaded), loaded.drafter.tree > 0, 0
        self.store = self.side.runner.executor.drafting.store

    def open(self):
        lease = self.side.kv_cache.open(300)
        request = Request(str(lease), (1,), 500)
        self.side.histories[request.id] = History(request)
        return lease

    def run(self, *work):
        """(lease, kind, tokens, proposed rows, whether they are sampled): returns the results."""
        tables, items = self.side.kv_cache.tables, []
        self.steps += 1
        for lease, kind, tokens, width, sample in work:
            start = tables.length(lease)
            item = Item(
                lease,
                str(lease),
                kind,
                tuple(tokens),
                start,
                sample=sample,
                budget=40,
                proposed=width,
                tree=self.tree,
                propose=("tree" if self.tree else "chain") if sample else "off",
            )
            tables.extend(lease, start + item.rows)
            items.append(item)
            # The text goes on as the test wants, not as the model chose.
            self.store.drafts.pending[lease.slot] = item.tokens[0]
        plan = StepPlan(self.steps, tuple(items), self.side.kv_cache.take_operations())
        results = self.side.runner.run(plan, self.side.histories).results
        for item, result in zip(items, results, strict=True):
            assert result.error is None
            assert (result.proposed > 0) == (item.propose != "off")
            tables.advance(item.lease, item.start + result.kept)
        return results

    def read(self, lease, tokens, sample=True):
        (result,) = self.run((lease, ItemKind.PREFILL, tokens, 0, sample))
        return result.emitted

    def proposals(self, lease):
        slot = lease.slot
        return self.store.drafts.tokens[slot].tolist(), self.store.drafts.parents[slot].tolist()

    def scores(self, lease):
        """The scores of a draft for one lane."""
        drafting = self.side.runner.executor.drafting
        buffers = drafting.buffers(1)
        buffers.put([Lane(lease.slot, Sampling())])
        buffers.upload()
        with torch.inference_mode():
            block = buffers.draft_block(self.store)
            return drafting.loaded.drafter.draft(block, self.side.state).scores


@pytest.mark.parametrize("window", [0, 20])
@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("graphs", ["on", "off"])
def test_proposals_do_not_depend_on_the_steps_before(model, text, tree, window, graphs):
    hand = Hand(model(tree=tree, window=window, graphs=graphs))
    at_once, sliced, stepped = hand.open(), hand.open(), hand.open()
    # Blocks of others stand first, and their proposals too.
    hand.read(stepped, text[:70])
    for start, stop in ((0, 31), (31, 33), (33, 64), (64, 95)):
        hand.read(sliced, text[start:stop], sample=False)
    for place in range(70, 96):
        width = (DEPTH, 0, 1)[place % 3]
        kind = ItemKind.VERIFY if width else ItemKind.DECODE
        (result,) = hand.run((stepped, kind, text[place : place + 1], width, True))
        assert result.kept == 1  # the drafts of random weights are wrong
    first = hand.read(at_once, text[:96])
    assert first == hand.read(sliced, text[95:96])
    assert hand.proposals(at_once) == hand.proposals(sliced) == hand.proposals(stepped)


@pytest.mark.parametrize(("window", "changed"), [(0, 40), (20, 45), (20, 58)])
def test_what_a_drafter_sees_decides_what_it_proposes(model, text, window, changed):
    """Another token in the context, or at the last place that a window shows, is another draft."""
    hand = Hand(model(window=window))
    scores = []
    for tokens in (text[:60], [*text[:changed], 5, *text[changed + 1 : 60]]):
        lease = hand.open()
        hand.read(lease, tokens)
        hand.store.drafts.pending[lease.slot] = 7
        scores.append(hand.scores(lease))
    assert float((scores[0] - scores[1]).abs().max()) > 1e-3


@pytest.mark.parametrize("count", [1, 3, 5])
def test_lanes_do_not_depend_on_one_another(model, text, count):
    alone, together = Hand(model()), Hand(model(graphs="on"))
    texts = [text[7 * i : 7 * i + 20 + 9 * i] for i in range(count)]
    expected = []
    for tokens in texts:
        lease = alone.open()
        alone.read(lease, tokens)
        expected.append(alone.proposals(lease))
    leases = [together.open() for _ in texts]
    together.run(
        *((x, ItemKind.PREFILL, tokens, 0, True) for x, tokens in zip(leases, texts, strict=True))
    )
    assert [together.proposals(lease) for lease in leases] == expected


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("graphs", ["on", "off"])
def test_it_changes_no_token(engine, model, text, solo, collect, tree, graphs):
    running = engine(model=model(tree=tree, graphs=graphs))
    many = [
        Request(f"r{i}", tuple(text[: 20 + 13 * i]), 30, Sampling(temperature=i % 2, seed=i))
        for i in range(4)
    ]
    tickets = [running.submit(request) for request in many]
    for request, ticket in zip(many, tickets, strict=True):
        outcome = collect(ticket)
        assert outcome.tokens == solo(request).tokens
        assert outcome.end.usage.drafted > 0
    assert running.stats()["draft_failures"] == 0
    assert torch.isfinite(running._runner.state.pools[0].arena.view(torch.float32)).all()
