"""Checks of experts that are not all on the device: where they are changes no bit."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from kinfolk.engine.expert_plan import ExpertPlan, landing_bytes
from kinfolk.engine.loading import LoadedModel, ModelSource
from kinfolk.engine.preparing import prepare_model
from kinfolk.plans import Placement
from kinfolk.sched.events import Emitted, Finished
from kinfolk.sched.request import Request, Sampling
from kinfolk.testing.checks.engine import engine
from kinfolk.testing.kit import ROOM, Kit
from kinfolk.testing.marks import needs
from kinfolk.types import CHUNK_POSITIONS

BAY_COUNTS: tuple[str, ...] = ("0", "1", "K-1", "K", "half", "E-1", "E")
"""Numbers of near bays of a layer with E experts, of which a row chooses K."""


class ExpertChecks:
    """A model gives the same bits wherever its experts are."""

    @needs("tiny", "experts")
    @pytest.mark.parametrize("bays", ["0", "K", "random"])
    def test_experts_may_be_anywhere(self, kinfolk_kit: Kit, bays: str) -> None:
        """Logits are the same, bit for bit, whether experts are in near bays, fetched, or read
        where they are: for slices, drafted chains and trees, of several sequences."""
        assert_same_bits(kinfolk_kit, bays)

    @needs("tiny", "experts")
    def test_answers_do_not_depend_on_where_experts_are(self, kinfolk_kit: Kit) -> None:
        """Requests at once, some cancelled, get the tokens that they get with all experts near."""
        run_requests(kinfolk_kit, 6)


def placement(kit: Kit, bays: str, seed: int = 0) -> Placement:
    """Near bays of each layer: one of :data:`BAY_COUNTS`, or random numbers of random experts."""
    source, rows = random.Random(f"{bays} {seed}"), []
    for count in kit.config.experts:
        known = {"0": 0, "1": 1, "K-1": top_k(kit) - 1, "K": top_k(kit), "half": count // 2}
        known |= {"E-1": count - 1, "E": count, "random": source.randint(0, count)}
        experts = list(range(count))
        source.shuffle(experts)
        rows.append(tuple(experts[: max(0, min(count, known[bays]))]))
    return Placement(tuple(rows))


def top_k(kit: Kit) -> int:
    architecture = kit.file.metadata.architecture
    return int(kit.file.metadata.integer(f"{architecture}.expert_used_count"))


def placed(
    kit: Kit, where: Placement, *, records: bool = True, swap: bool = True, **options: Any
) -> LoadedModel:
    """The tiny model with experts in these bays. ``records``: it has records, even if all of its
    experts are near."""
    settings = kit.settings(context=min(kit.config.context, 2 * ROOM), **options)
    ready = prepare_model(kit.path, settings, kit.registry)
    plan = AlwaysRecords if records else ExpertPlan
    sizes = ready.experts.sizes
    landing = landing_bytes(sizes, where)
    experts = plan(sizes, where, swap, ready.experts.top_k, landing=landing)
    graphs = options.get("graphs") == "on"
    return ModelSource(replace(ready, experts=experts), graphs, False).load(drafter=False)


class AlwaysRecords(ExpertPlan):
    """A plan whose experts are in records, even if all of them are near."""

    @property
    def partial(self) -> bool:
        return True


def assert_same_bits(kit: Kit, bays: str, seed: int = 0, **options: Any) -> None:
    """Compare a script of steps with that of the model whose experts are all near, in steps that
    are launched one by one and in padded ones."""
    where = placement(kit, bays, seed)
    near = Placement(tuple(tuple(range(count)) for count in kit.config.experts))
    swap = options.pop("swap", True)
    usual = placed(kit, near, records=False, **options)
    other = placed(kit, where, swap=swap, **options)
    for replays in (False, True):
        pairs = zip(script(kit, usual, replays), script(kit, other, replays), strict=True)
        for number, (expected, found) in enumerate(pairs):
            assert torch.equal(expected, found), (
                f"step {number} of {bays} bays a layer differs (padded: {replays})"
            )
    assert other.experts is not None
    other.experts.check_integrity()


def script(kit: Kit, loaded: LoadedModel, replays: bool) -> Iterator[torch.Tensor]:
    """Logits of slices of many sizes, decoding, a chain and a tree, of three sequences."""
    drive = kit.driver(loaded, replays=replays)
    first, second, third = (drive.open(ROOM) for _ in range(3))
    tokens = iter(kit.random_tokens(400, seed=7))

    def some(count: int) -> list[int]:
        return [next(tokens) for _ in range(count)]

    for fed in (
        {first: some(16), second: some(3)},
        {first: some(1)},
        {first: some(1), second: some(1), third: some(CHUNK_POSITIONS)},
        {second: some(7), third: some(1)},
    ):
        yield from drive.feed(fed).values()
    chain, tree = some(4), some(5)
    yield from drive.draft({first: (chain, None), third: (some(2), None)}).values()
    drive.keep({first: [0, 1], third: [0]})
    yield from drive.draft({first: (tree, [-1, 0, 0, 1, 2])}).values()
    drive.keep({first: [0, 2, 4]})
    yield from drive.feed({first: some(1), second: some(1), third: some(1)}).values()


def run_requests(kit: Kit, count: int, share: str = "20%", **options: Any) -> None:
    """Random requests at once get the same tokens with a share of the experts near as with all of
    them. Steps do not depend on neighbours here, so that no difference is one of batches."""
    usual, other = (
        _answers(kit, count, {**options, "expert_budget": budget}) for budget in ("all", share)
    )
    for number in range(count):
        shorter = min(len(usual[number]), len(other[number]))
        assert usual[number][:shorter] == other[number][:shorter], f"request {number}"
        assert _is_cancelled(number) or len(usual[number]) == len(other[number])


def _answers(kit: Kit, count: int, options: dict[str, Any]) -> list[list[int]]:
    with engine(kit, batch_invariant=True, max_queue=count, **options) as runtime:
        tickets = [runtime.engine.submit(_request(kit, number)) for number in range(count)]
        answers = []
        for number, ticket in enumerate(tickets):
            tokens: list[int] = []
            for event in ticket:
                if isinstance(event, Emitted):
                    tokens += event.tokens
                    if _is_cancelled(number):
                        ticket.cancel()
                elif isinstance(event, Finished):
                    assert event.error is None, event.error
            answers.append(tokens)
        runtime.engine.check_integrity()
    return answers


def _is_cancelled(number: int) -> bool:
    return number % 5 == 4


def _request(kit: Kit, number: int) -> Request:
    source = random.Random(f"experts {number}")
    prompt = kit.random_tokens(source.choice((1, 3, 16, 64, 70)), seed=number)
    sampling = Sampling(seed=number, temperature=source.choice((0.0, 1.0)))
    return Request(f"r{number}", tuple(prompt), source.randint(1, 12), sampling)
