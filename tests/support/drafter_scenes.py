"""Scenes for tests of drafters with weights, on the CPU and on the GPU.

A drafter of random weights runs as it is, and then the right tokens take the place of its first
candidates, on the device: so drafts are kept, and all that a draft launches is launched.
"""

from __future__ import annotations

import json
import random
from collections import deque
from dataclasses import replace
from itertools import islice

import mtp_bench
import torch
from dflash_bench import file_keys, file_tensors, write_file
from dflash_reference import Shape, random_tensors
from executor_scenes import Side
from training_runs import Notes

from kinfolk.engine import score
from kinfolk.engine.engine import Engine
from kinfolk.engine.history import History
from kinfolk.engine.loading import load_model
from kinfolk.gguf.file import GGUFFile
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.plan import Item, ItemKind, StepPlan
from kinfolk.sched.request import Request, Sampling
from kinfolk.settings import load_settings
from kinfolk.spec.dflash import tiny
from kinfolk.train.options import TrainOptions
from kinfolk.train.prepared import prepare_run
from kinfolk.train.run import TrainingRun
from kinfolk_kernels.sample.philox import gumbel

SHAPES = {
    "windows": Shape(
        (20, 20, None), (True, True, False), vocabulary=768, mask=767, dim=32,
        feature_layers=(0, 2, 3),
    ),
    "dflash2": Shape(
        (70, None), (True, False), vocabulary=768, mask=767, feature_layers=(1, 2), block=8, dim=32,
        conv=(2, 16), selector=(12, 8),
    ),
}  # fmt: skip
MODELS = (*SHAPES, "pocket", "mtp qwen35", "mtp qwen35moe")
"""DFlash drafters of the reference case and of the bundled model, and blocks for MTP."""

CHAIN, TREE = 5, 12
"""Tokens of a drafted chain, and of a tree."""
LONGEST = 512
TIES = {"cpu": 2e-3, "cuda": 5e-2}
"""Of a score, by the device: what it differs by in steps of other sizes. The order of sums in
float32 does that; a GPU also rounds rows of packed products, few to int8, more to float16."""


# -- models ---------------------------------------------------------------------------------------


class Models:
    """Opens the models on ``device``; files are written once, to ``folder``."""

    def __init__(self, device, cases, folder, registry):
        self.device, self.cases, self.folder = device, cases, folder
        self.registry = registry

    def target(self, name):
        if name == "pocket":
            families = [provided.value for provided in self.registry.families.values()]
            return next(path for family in families if (path := family.bundled_model()))
        if name in SHAPES:
            return self.cases / "qwen35.gguf"
        path = self.folder / f"{name}.gguf"
        if not path.exists():
            mtp_bench.write_model(path, name.removeprefix("mtp "))
        return path

    def drafter(self, name):
        """The settings that name the drafter."""
        if name.startswith("mtp"):
            return {"draft": "mtp"}
        path = self.folder / f"{name}-draft.gguf"
        if path.exists():
            return {"draft_model": path}
        if name == "pocket":
            tiny.write(self.target(name), path)
            return {"draft_model": path}
        shape = SHAPES[name]
        with GGUFFile.open(self.target(name)) as file:
            tokens = list(file.metadata.strings("tokenizer.ggml.tokens"))
        keys = file_keys(shape, "B") | {"tokenizer.ggml.tokens": tokens}
        write_file(path, {key: value for key, value in keys.items() if value is not None},
                   file_tensors(random_tensors(shape), "B"))  # fmt: skip
        return {"draft_model": path}

    def open(self, name, **settings):
        """The model without a drafter, in float32 unless ``settings`` say otherwise."""
        options = {"device": self.device, "dtype": "f32", "context": LONGEST, "slots": 4}
        options |= {"graphs": "on", "draft": "off", **settings}
        return load_model(self.target(name), load_settings(**options), self.registry)

    def drafted(self, name, mode, **settings):
        """The model with its drafter, whose drafts are those of ``mode``; see ``draft_mode``."""
        shape = {"draft_mode": mode, "draft_budget": TREE}
        depth = 4 if name == "pocket" else CHAIN
        if mode != "tree":
            shape["draft_tokens"] = depth
        options = self.drafter(name) | shape | {"draft_widths": "fixed", **settings}
        return self.open(name, **({"draft": "auto"} | options))


class Guided:
    """A drafter whose first candidates are the tokens of ``futures`` int64 [n, LONGEST], those of
    the row that a lane's seed names; every ``wrong``-th position is wrong."""

    def __init__(self, drafter, futures, vocabulary, wrong=4):
        self.drafter, self.vocabulary, self.wrong = drafter, vocabulary, wrong
        self.futures = futures

    def extend(self, features, batch, view):
        return self.drafter.extend(features, batch, view)

    def commit(self, trace, kept, view):
        self.drafter.commit(trace, kept, view)

    def draft(self, block, view):
        found = self.drafter.draft(block, view)
        depth = torch.arange(1, found.tokens.shape[1] + 1, device=found.tokens.device)
        place = (block.positions[:, None] + depth).clamp_max(self.futures.shape[1] - 1)
        right = self.futures[block.seed.clamp(0, len(self.futures) - 1)[:, None], place]
        right = torch.where(place % self.wrong == 0, (right + 1) % self.vocabulary, right)
        found.tokens[:, :, 0] = right
        # A tree has the first candidates of all depths, and siblings where there is room.
        found.scores[:, :, 0] = 0
        return found


def guided(loaded, futures, wrong=4):
    """``loaded`` with a drafter that knows these texts."""
    rows = torch.zeros(len(futures), LONGEST, dtype=torch.int64)
    for row, text in zip(rows, futures, strict=True):
        row[: len(text)] = torch.tensor(text)
    drafter = Guided(loaded.drafter.drafter, rows.to(loaded.device), loaded.info.vocabulary, wrong)
    return replace(loaded, drafter=replace(loaded.drafter, drafter=drafter))


# -- texts ----------------------------------------------------------------------------------------


def requests_of(text, vocabulary, count=4, new=40):
    """Greedy and sampled by turns; the seed is the number of the request. Nothing is truncated, so
    a token is chosen for its score alone."""
    known = [token % vocabulary for token in text]
    return [
        Request(
            f"r{n}", tuple(known[: 20 + 13 * n]), new, Sampling(temperature=0.9 * (n % 2), seed=n)
        )
        for n in range(count)
    ]


def answers(loaded, requests, slots=4):
    """The tokens of requests that run at once, their usages, and the engine's counts."""
    limits = SchedulerLimits(
        slots=slots,
        context=LONGEST,
        step_tokens=32 * slots,
        slice=32,
        vocabulary=loaded.info.vocabulary,
    )
    with Engine(loaded, limits) as engine:
        # Of very many, few wait at a time: a step takes longer with a long queue.
        left, events = iter(requests), []
        tickets = deque(map(engine.submit, islice(left, 4 * slots)))
        while tickets:
            events.append(list(tickets.popleft()))
            tickets.extend(map(engine.submit, islice(left, 1)))
        stats = engine.stats()
        assert engine.uncapturable_ops() == {}
    assert all(found[-1].error is None for found in events)
    tokens = [[t for event in found[:-1] for t in event.tokens] for found in events]
    return tokens, [found[-1].usage for found in events], stats


def ties(plain, request, expected, found):
    """How many tokens differ, 0 or 1, from where on nothing can be compared. Raises unless the two
    tokens have the same score but for rounding."""
    assert len(expected) == len(found)
    places = [n for n, pair in enumerate(zip(expected, found, strict=True)) if pair[0] != pair[1]]
    if not places:
        return 0
    known = [*request.prompt, *expected[: places[0]]]
    row = torch.cat(list(score.logits(plain, known)))[-1].float().cpu()
    keys, sampling = row.double(), request.sampling
    if sampling.temperature:
        seed, position = (torch.tensor([n]) for n in (sampling.seed, len(known)))
        keys = keys / sampling.temperature + gumbel(seed, position, torch.arange(len(row)))
    best = keys.max()
    for token in (expected[places[0]], found[places[0]]):
        assert float(best - keys[token]) <= TIES[plain.device.type], (
            f"{request.id}: token {places[0]} is no tie"
        )
    return 1


def outputs_are_those_without_drafts(models, name, mode, text):
    """Returns the ties."""
    plain = models.open(name)
    requests = requests_of(text, plain.info.vocabulary)
    expected, _, _ = answers(plain, requests)
    futures = [[*one.prompt, *rest] for one, rest in zip(requests, expected, strict=True)]
    found, usages, stats = answers(guided(models.drafted(name, mode), futures), requests)
    assert stats["draft_failures"] == stats["eager_steps"] == 0
    assert stats["drafts"] > 0
    tied = sum(map(ties, [plain] * 4, requests, expected, found))
    # Where a tie was decided otherwise, what follows is not what the drafter knows.
    for usage in usages if not tied else ():
        assert usage.accepted >= 15
        assert usage.steps == usage.emitted - 1 - usage.accepted
    return tied


# -- steps by hand --------------------------------------------------------------------------------


class Lanes:
    """Sequences of one model runner, each step given by hand."""

    def __init__(self, loaded, capture=None):
        self.side, self.has_trees = Side(loaded, capture), loaded.drafter.tree > 0
        self.steps = 0
        self.pending = {}
        self.trees = {}  # whether what is proposed for a lease is a tree

    def open(self, tokens, sampling=None, positions=300, resident=None):
        lease = self.side.kv_cache.open(positions, resident=resident)
        self.enter(lease, sampling)
        self.run({lease: (ItemKind.PREFILL, tuple(tokens), 0)})
        return lease

    def enter(self, lease, sampling=None):
        request = Request(str(lease), (1,), 500, sampling or Sampling())
        self.side.histories[request.id] = History(request)

    def fork(self, lease):
        forked = self.side.kv_cache.tables.fork(lease, 300)
        self.enter(forked)
        self.pending[forked] = self.pending[lease]
        return forked

    def verify(self, widths):
        """A step of leases with these numbers of proposed rows; returns the tokens of each."""
        kinds = {
            lease: (ItemKind.VERIFY if width else ItemKind.DECODE, (self.pending[lease],), width)
            for lease, width in widths.items()
        }
        return self.run(kinds)

    def run(self, kinds):
        tables, items = self.side.kv_cache.tables, []
        self.steps += 1
        for lease, (kind, tokens, width) in kinds.items():
            start, wants_tree = tables.length(lease), self.wants_tree()
            common = {"budget": 40, "proposed": width, "tree": self.trees.get(lease, False)}
            common["propose"] = "tree" if wants_tree else "chain"
            items.append(Item(lease, str(lease), kind, tokens, start, **common))
            tables.extend(lease, start + items[-1].rows)
            self.trees[lease] = wants_tree
        plan = StepPlan(self.steps, tuple(items), self.side.kv_cache.take_operations())
        emitted = {}
        for item, result in zip(
            items, self.side.runner.run(plan, self.side.histories).results, strict=True
        ):
            assert result.error is None
            assert result.proposed
            tables.advance(item.lease, item.start + result.kept)
            self.side.histories[item.request_id].extend(result.emitted)
            emitted[item.lease] = list(result.emitted)
            self.pending[item.lease] = result.emitted[-1]
        self.side.kv_cache.check_integrity()
        return emitted

    def wants_tree(self):
        """Whether a tree is to be proposed for the next item."""
        return self.has_trees

    @property
    def stored(self):
        """What is proposed for every slot but that of padding, and behind how many positions."""
        store = self.side.runner.executor.drafting.store
        drafts = store.drafts
        parts = (drafts.pending, drafts.tokens, drafts.parents, drafts.counts, store.length)
        return [part[1:].clone() for part in parts]


class Mixed(Lanes):
    """Steps of random sequences, greedy and sampled, and of random widths, chains and trees."""

    def __init__(self, loaded, text, capture=None, seed=3):
        super().__init__(loaded, capture)
        self.text, self.source = text, random.Random(seed)
        self.chain, self.tree = loaded.drafter.chain, loaded.drafter.tree

    def wants_tree(self):
        return bool(self.tree) and (not self.chain or self.source.random() < 0.5)

    def start(self):
        for number in range(4):
            sampling = Sampling(temperature=0.9 * (number % 2), seed=number)
            self.open(self.text[: 20 + 9 * number], sampling)

    def close(self, *leases):
        """Release these sequences, or all."""
        for lease in leases or list(self.pending):
            self.side.kv_cache.tables.release(lease)
            del self.pending[lease], self.trees[lease]

    def step(self):
        """A step; returns what it emits. A sequence that is long begins anew."""
        length = self.side.kv_cache.tables.length
        for lease in [lease for lease in self.pending if length(lease) > 250]:
            self.close(lease)
            self.open(self.text[:20], Sampling(temperature=0.9, seed=1))
        chosen = self.source.sample(list(self.pending), self.source.randint(1, 4))
        widths = {
            lease: self.source.randint(0, self.tree if self.trees[lease] else self.chain)
            for lease in chosen
        }
        return self.verify(widths)


def replays_are_the_launches(models, name, mode, text, capture, same, **settings):
    """Captured steps and drafts, and the same buffers launch by launch by ``capture``: tokens,
    state of model and drafter, and proposals, by ``same``. Returns the runner that replays."""
    loaded = models.drafted(name, mode, **settings)
    known = [token % loaded.info.vocabulary for token in text]
    loaded = guided(loaded, [(known * 4)[:LONGEST]] * 4)
    sides = [Mixed(loaded, known), Mixed(loaded, known, capture)]
    for side in sides:
        assert side.side.runner.uncapturable_ops == {}
        side.start()
    for _ in range(12):
        found = [list(side.step().values()) for side in sides]
        assert found[0] == found[1]
        for one, other in zip(sides[0].stored, sides[1].stored, strict=True):
            same(one, other)
        for leases in zip(*(side.pending for side in sides), strict=True):
            kept = (each.side.kept(lease) for each, lease in zip(sides, leases, strict=True))
            for one, other in zip(*kept, strict=True):
                same(one, other)
    counters = sides[0].side.runner.counters
    assert counters["eager_steps"] == sides[0].side.runner.draft_failures == 0
    assert counters["replays"] > 0
    assert counters["drafts"] > 0
    return sides[0].side.runner


def nothing_is_captured_again(models, name, text, steps=200):
    """``steps`` steps of random sequences, widths, chains and trees, and the same steps again."""
    loaded = models.drafted(name, "auto")
    known = [token % loaded.info.vocabulary for token in text]
    loaded = replace(guided(loaded, [(known * 4)[:LONGEST]] * 4), captures=500)
    mixed = Mixed(loaded, known)
    begun, runner, counters = mixed.source.getstate(), mixed.side.runner, []
    for _ in range(2):
        mixed.source.setstate(begun)
        mixed.start()
        for _ in range(steps):
            mixed.step()
        counters.append(runner.counters)
        mixed.close()
    changed = {key: counters[1][key] - count for key, count in counters[0].items()}
    assert changed["steps"] == changed["waits"] == changed["drafts"] >= steps
    assert changed["replays"] == changed["steps"]
    assert changed["captures"] == changed["allocations"] == changed["eager_steps"] == 0
    assert runner.draft_failures == 0
    assert runner.uncapturable_ops == {}


# -- training -------------------------------------------------------------------------------------

LEARNED = ("def one", "class Two", "import three", "for four", "while five", "return six")
TRAINING = {
    "continue_": 30, "length": 48, "block": 4, "batch": 4, "anchors": 16, "learning_rate": 3e-3,
    "outtype": "f32",
}  # fmt: skip


def a_trained_drafter_is_kept(models, kind, steps):
    """Texts are continued, features computed and a drafter trained on the device; then most of its
    drafts for a text that it has learned are kept. Returns the steps of the answer of 30 tokens."""
    target, out = models.cases / "qwen35.gguf", models.folder / f"trained-{kind}.gguf"
    data = models.folder / "learned.jsonl"
    data.write_text("".join(json.dumps({"text": text * 9}) + "\n" for text in LEARNED))
    shape = {"layers": 2, "head_dim": 16} if kind == "dflash" else {}
    options = TrainOptions(kind=kind, steps=steps, **TRAINING, **shape)
    settings = load_settings(device=models.device, dtype="f32")
    prepared = prepare_run(target, [data], options, settings, models.registry)
    run = TrainingRun(prepared, options, settings, models.registry, out, Notes(), lambda: False)
    assert run.run(overwrite=True).measured.hits
    drafter = {"draft": "mtp"} if kind == "mtp" else {"draft_model": out}
    options = {"device": models.device, "dtype": "f32", "context": LONGEST, "slots": 4}
    options |= {"draft_mode": "chain", "draft_widths": "fixed", **drafter}
    path = out if kind == "mtp" else target
    loaded = load_model(path, load_settings(**options), models.registry)
    request = Request("learned", prepared.texts[0].tokens, 30)
    _, (usage,), stats = answers(loaded, [request])
    assert stats["draft_failures"] == 0
    return usage.steps
