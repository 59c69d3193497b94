"""Scenes for tests of executors: two model runners run the same steps, and results must be equal.

For the tests of captured steps on the CPU and on the GPU.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from kinfolk.engine.history import History
from kinfolk.engine.model_runner import ModelRunner
from kinfolk.sched.plan import Item, ItemKind, StepPlan
from kinfolk.sched.request import Request, Sampling

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
"""Whether a result does not depend on its place in a tensor: vector code computes the exponentials
at the end of a tensor differently."""


def assert_same(one, other):
    """Assert equality, bit for bit if the CPU's code allows it."""
    if EXACT:
        assert torch.equal(one, other)
    else:
        assert float((one - other).float().norm()) <= 1e-5 * float(other.float().norm())


def _comparable(results):
    """Results with log-probabilities rounded, unless the CPU's code makes them equal."""
    if EXACT or not isinstance(results, tuple):
        return results
    return [replace(each, logprobs=tuple(map(_rounded, each.logprobs))) for each in results]


def _rounded(one):
    top = tuple((token, pytest.approx(logprob, abs=1e-5)) for token, logprob in one.top)
    return replace(one, logprob=pytest.approx(one.logprob, abs=1e-5), top=top)


class Side:
    """One model runner with a state of its own."""

    def __init__(self, loaded, capture=None):
        self.loaded = loaded
        self.kv_cache, self.state = loaded.new_state()
        self.runner = ModelRunner(loaded, self.state)
        if capture is not None:
            self.runner.executor.capture = capture
        self.histories = {}

    def kept(self, lease):
        kept = [tensor[lease.slot] for tensor in self.state.recurrent_tensors()]
        length = self.kv_cache.tables.length(lease)
        for pool in self.state.pools:
            for chunk, block in sorted(pool.tables[lease.slot].items()):
                for section in pool.layout.sections.values():
                    rows = max(0, min(64, length - 64 * chunk))
                    planes = pool.planes(pool.data, section)
                    kept += [plane[block, :, :rows] for plane in planes]
        return [x.clone() for x in kept]


class Twins:
    """Runs the same steps in buckets and without padding; asserts that all results are equal."""

    def __init__(self, first, second, same=assert_same):
        self.sides, self.same = (first, second), same
        self.leases, self.steps = [], 0

    def both(self, do):
        first, second = (do(side) for side in self.sides)
        assert _comparable(first) == _comparable(second)
        return first

    def open(self, sampling=GREEDY, positions=400, resident=None):
        lease = self.both(lambda side: side.kv_cache.open(positions, resident=resident))
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

    def run(self, items, last=None):
        """Run a step of ``items``: (lease, kind, tokens, parents). ``last``: the leases whose slice
        is the last of the prompt, by default all."""
        self.steps += 1

        def step(side):
            planned = []
            for lease, kind, tokens, parents in items:
                start = side.kv_cache.tables.length(lease)
                side.kv_cache.tables.extend(lease, start + len(tokens))
                sample = kind is not ItemKind.PREFILL or last is None or lease in last
                planned.append(
                    Item(
                        lease,
                        str(lease),
                        kind,
                        tuple(tokens),
                        start,
                        sample=sample,
                        budget=9,
                        parents=parents,
                    )
                )
            plan = StepPlan(self.steps, tuple(planned), side.kv_cache.take_operations())
            results = side.runner.run(plan, side.histories).results
            for item, result in zip(planned, results, strict=True):
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


def mixtures(pair, text, lengths, source):
    """Prompts of ``lengths``, one after the other, each in random slices beside the decoding, the
    drafts and the first slices of others."""
    pending, unread = {}, {}
    for number, length in enumerate(lengths):
        sampling = SAMPLINGS[number % 3]
        unread[pair.open(sampling, length + 60)] = (text * 2)[number : number + length]
        while len(unread) > 1 or (unread and number == len(lengths) - 1):
            items, begun = [], {}
            for lease, token in pending.items():
                if source.random() < 0.3:
                    draft = (token, *source.choices(text, k=source.randrange(1, 6)))
                    items.append((lease, ItemKind.VERIFY, draft, None))
                else:
                    items.append((lease, ItemKind.DECODE, (token,), None))
            for lease, rest in unread.items():
                count = min(len(rest), source.randrange(1, len(rest) + 1))
                items.append((lease, ItemKind.PREFILL, tuple(rest[:count]), None))
                begun[lease] = rest[count:]
            found = pair.run(items, last={x for x, rest in begun.items() if not rest})
            unread = {lease: rest for lease, rest in begun.items() if rest}
            pending |= found
        for lease in [x for x in pending if pair.sides[0].kv_cache.tables.length(x) > 330]:
            pair.release(lease)
            del pending[lease]
        while len(pending) > 3:
            lease = next(iter(pending))
            pair.release(lease)
            del pending[lease]


def verify_beside_others(pair, text, parents):
    """Drafts of 6 and of 2 rows, the first right up to some row, beside a sequence without."""
    leases = [pair.open(sampling) for sampling in (GREEDY, WARM, GREEDY)]
    pending = {x: pair.prefill(x, text[: 30 + 33 * n]) for n, x in enumerate(leases)}
    # A fork decodes the next tokens, so that some drafts are right.
    oracle = pair.fork(leases[0])
    token, right = pending[leases[0]], []
    for _ in range(4):
        token = pair.decode({oracle: token})[oracle]
        right.append(token)
    short = None if parents is None else (-1, 0)
    for wrong in (0, 2, 4):
        draft = [*right[:wrong], 1, 1, 1, 1, 1][:5]
        fork = pair.fork(leases[0])
        sampled = pair.run(
            [
                (fork, ItemKind.VERIFY, (pending[leases[0]], *draft), parents),
                (leases[1], ItemKind.DECODE, (pending[leases[1]],), None),
                (leases[2], ItemKind.VERIFY, (pending[leases[2]], 7), short),
            ]
        )
        pending[leases[1]], pending[leases[2]] = sampled[leases[1]], sampled[leases[2]]
        pair.release(fork)


def counted(running, text, steps):
    """Counters before and after ``steps`` steps, after a warm-up of the engine and some steps.
    Requests start and end meanwhile, and some share a prefix."""
    running.warm_up(lambda done, total, what: None)
    source, number = random.Random(1), 0
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
            before = running.stats()
        if number > 24 and running.stats()["steps"] >= before["steps"] + steps:
            return before, running.stats()


def assert_flat(before, after):
    changed = {name: after[name] - count for name, count in before.items()}
    assert changed["captures"] == 0
    assert changed["allocations"] == 0
    assert changed["replays"] + changed["eager_steps"] == changed["steps"]
    assert changed["waits"] == changed["steps"]
    assert changed["eager_steps"] == 0


def kept_beside(loaded, text, company, place=0):
    """The state of a sequence after a prompt and eleven steps, at ``place`` among ``company``
    others."""
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
