"""Prompts that come while a sequence decodes are cut into short slices, and answered as alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kinfolk.engine.loading import load_model
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings

LENGTHS = (1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 200)
"""At and beside the ends of short slices of 64 rows, and of long ones of 128."""

SLICES = {"slice": 128, "mixed_slice": 64, "step_tokens": 200}


def beside_decoding(running, collect, busy, requests):
    """The outcomes of requests that come one by one while ``busy`` decodes, and its own."""
    ticket = running.submit(busy)
    outcomes = [collect(running.submit(request)) for request in requests]
    assert busy.id in {view.request_id for view in running.overview().result().requests}, (
        "in company"
    )
    running.cancel(busy.id)
    return outcomes, collect(ticket)


def prompts(text, marks=()):
    """Prompts that have no beginning in common."""
    return [
        Request(
            f"r{n}", tuple((text[n:] + text)[:n]), 5, checkpoints=tuple(m for m in marks if m <= n)
        )
        for n in LENGTHS
    ]


@pytest.mark.parametrize("graphs", ["off", "on"])
@pytest.mark.parametrize("drafts", [False, True])
def test_every_length_around_a_boundary(engine, load, text, solo, collect, prophet, graphs, drafts):
    busy, requests = Request("busy", tuple(text[:5]), 400), prompts(text)
    expected = [solo(request) for request in (busy, *requests)]
    futures = [[*r.prompt, *o.tokens] for r, o in zip((busy, *requests), expected, strict=True)]
    # So long as it is busy: drafts would end it soon.
    drafter = prophet(futures[1:]) if drafts else None
    running = engine(drafter, model=load(graphs=graphs), **SLICES)
    outcomes, other = beside_decoding(running, collect, busy, requests)
    assert [one.tokens for one in outcomes] == [one.tokens for one in expected[1:]]
    assert other.tokens == expected[0].tokens[: len(other.tokens)]
    assert not drafts or all(one.end.usage.accepted for one in outcomes)


def test_a_prefix_that_ends_inside_a_short_slice_is_reused(engine, text, solo, collect):
    marks = (30, 64, 100, 150)
    requests = prompts(text, marks)
    longer = [
        replace(one, id=f"{one.id} again", prompt=(*one.prompt, *text[30:70])) for one in requests
    ]
    running = engine(**SLICES)
    busy = Request("busy", tuple(text[:5]), 400)
    outcomes, _ = beside_decoding(running, collect, busy, [*requests, *longer])
    for request, one in zip((*requests, *longer), outcomes, strict=True):
        assert one.tokens == solo(request).tokens
    for request, one in zip(longer, outcomes[len(requests) :], strict=True):
        assert one.end.usage.reused >= max((0, *request.checkpoints))


@pytest.mark.parametrize("family", ["qwen35moe", "gemma4", "gemma4moe", "laguna"])
def test_every_family(engine, registry, cases, text, collect, family):
    options = {"device": "cpu", "dtype": "f32", "context": 512, "slots": 8}
    loaded = load_model(cases / f"{family}.gguf", load_settings(**options), registry)
    known = [token % loaded.info.vocabulary for token in text]
    busy, requests = Request("busy", tuple(known[:5]), 400), prompts(known)
    alone = engine(model=loaded, **{**SLICES, "mixed_slice": None})
    expected = [collect(alone.submit(request)) for request in requests]
    running = engine(model=loaded, **SLICES)
    outcomes, _ = beside_decoding(running, collect, busy, requests)
    assert [one.tokens for one in outcomes] == [one.tokens for one in expected]
