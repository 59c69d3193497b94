"""Planted acceptance in the engine: real passes of a DFlash drafter, accepted by draws."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kinfolk.sched.request import Request, Sampling
from kinfolk.spec.dflash import tiny
from kinfolk.spec.plant import PlantedAcceptance

DEPTH = 4
LENGTH = 3.2


@pytest.fixture(scope="module")
def drafter_file(cases, tmp_path_factory):
    path = tmp_path_factory.mktemp("drafter") / "draft.gguf"
    tiny.write(cases / "qwen35.gguf", path)
    return path


@pytest.fixture
def planted(load, drafter_file):
    """``planted(length, **settings)``: the model with a drafter of random weights."""

    def open_model(length, **settings):
        loaded = load(draft_model=drafter_file, **settings)
        assert loaded.drafter.plan.depth == DEPTH
        acceptance = PlantedAcceptance.of(length, DEPTH, loaded.device)
        return replace(loaded, drafter=replace(loaded.drafter, planted=acceptance))

    return open_model


def several(text, count, new, temperature=0.0):
    return [
        Request(
            f"r{i}", tuple(text[: 9 + 5 * i]), new, Sampling(temperature=temperature, seed=100 + i)
        )
        for i in range(count)
    ]


def counts_of(running, requests, collect):
    tickets = [running.submit(request) for request in requests]
    return [collect(ticket).end.usage.drafts for ticket in tickets]


@pytest.mark.parametrize(
    "options", [{"graphs": "on"}, {"graphs": "on", "draft_mode": "tree", "draft_budget": 12}]
)
def test_the_length_is_the_planted_one(options, engine, text, collect, planted):
    loaded = planted(LENGTH, **options)
    running = engine(model=loaded)
    counts = counts_of(running, several(text, 8, 160), collect)
    chance, length, reaching = loaded.drafter.planted.chance, 1.0, 1.0
    for place in range(DEPTH):
        reached, kept = (sum(getattr(c, n)[place] for c in counts) for n in ("reached", "kept"))
        assert abs(kept / reached - chance) < 4 * (chance * (1 - chance) / reached) ** 0.5
        reaching *= kept / reached
        length += reaching
    steps = sum(each.steps for each in counts)
    chances = [chance**n * (1 - chance) for n in range(DEPTH)] + [chance**DEPTH]
    variance = sum(p * (n + 1 - LENGTH) ** 2 for n, p in enumerate(chances))
    assert abs(length - LENGTH) < 4 * (variance / steps) ** 0.5 < 0.4
    assert running.stats()["eager_steps"] == running.stats()["draft_failures"] == 0


def test_a_replay_draws_what_a_single_step_draws(engine, text, collect, planted):
    """Greedy or not: seeds and positions are uploaded for both."""
    found = [
        counts_of(engine(model=planted(LENGTH, graphs=graphs)), requests, collect)
        for graphs in ("on", "off")
        for requests in (several(text, 3, 40), several(text, 3, 40, temperature=0.8))
    ]
    assert found[0] == found[1] == found[2] == found[3]


def test_widths_that_follow_the_clock_learn_the_planted_acceptance(engine, text, collect, planted):
    loaded = planted(DEPTH + 1, draft_mode="chain")
    usages = [
        collect(engine(model=loaded, widths="cost").submit(request)).end.usage
        for request in several(text, 1, 120)
    ]
    for usage in usages:
        assert usage.drafts.accepted == usage.emitted - 1 - usage.steps
        assert usage.drafts.accepted == usage.drafts.drafted > 0


def test_an_engine_with_planted_acceptance_says_that_its_output_is_invalid(
    engine, planted, load, drafter_file, caplog
):
    engine(model=load(draft_model=drafter_file))
    assert "output invalid" not in caplog.text
    engine(model=planted(LENGTH))
    assert "output invalid" in caplog.text
