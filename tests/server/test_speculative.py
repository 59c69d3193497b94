"""The field ``speculative``, and what answers say of their drafts, with scripted counts."""

from __future__ import annotations

import re

import pytest

from kinfolk.sched.draft_counts import NO_DRAFTS, DraftCounts

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"

CHAIN = DraftCounts("chain", 4, 20, 20, 13, (4, 3, 2, 2, 1, 0), (3, 3, 2, 1, 0, 0))
TREE = DraftCounts("tree", 3, 18, 9, 10, (3, 3, 2), (3, 2, 2))

CHAIN_USAGE = {
    "steps": 4,
    "drafted": 20,
    "accepted": 9,
    "accept_length": 3.25,
    "accept_rate": 0.45,
    "per_position": [0.75, 0.75, 0.5, 0.25, 0.0, 0.0],
    "mode": "chain",
    "fallback": None,
}
TREE_USAGE = {
    "steps": 3,
    "drafted": 18,
    "accepted": 7,
    "accept_length": 3.333,
    "accept_rate": 0.778,
    "per_position": [1.0, 0.667, 0.667],
    "mode": "tree",
    "fallback": None,
}
NOTHING = {
    "steps": 0,
    "drafted": 0,
    "accepted": 0,
    "accept_length": 0.0,
    "accept_rate": 0.0,
    "per_position": [],
    "mode": "off",
    "fallback": None,
}


@pytest.fixture
def ask(make_client, make_engine, user, read_stream):
    """``ask(drafts, path, **fields)``: the usage of an answer with these counts of drafts."""

    def ask(drafts, path=CHAT, **fields):
        client = make_client(make_engine("Hello", drafts=drafts))
        body = user(**fields) if path == CHAT else {"prompt": "Hi", **fields}
        if not fields.get("stream"):
            return client.post(path, json=body).json()["usage"]
        body["stream_options"] = {"include_usage": True}
        *chunks, last = read_stream(client.post(path, json=body)).events
        assert all(chunk["usage"] is None for chunk in chunks)
        return last["usage"]

    return ask


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETE])
@pytest.mark.parametrize(("drafts", "figures"), [(CHAIN, CHAIN_USAGE), (TREE, TREE_USAGE)])
def test_the_figures_are_those_of_the_engine(ask, path, stream, drafts, figures):
    usage = ask(drafts, path, stream=stream)
    assert usage["speculative"] == figures
    assert usage["accept_rate"] == figures["accept_rate"]
    details = usage["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == figures["accepted"]
    assert details["rejected_prediction_tokens"] == figures["drafted"] - figures["accepted"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [CHAT, COMPLETE])
def test_the_figures_of_several_choices_are_sums(ask, path, stream):
    figures = ask(CHAIN, path, n=3, stream=stream)["speculative"]
    assert figures == {**CHAIN_USAGE, "steps": 12, "drafted": 60, "accepted": 27}


@pytest.mark.parametrize("path", [CHAT, COMPLETE])
def test_what_is_asked_reaches_the_engine(make_client, make_engine, user, path):
    engine = make_engine("x")
    client = make_client(engine)
    fields = [
        {},
        {"speculative": None},
        {"speculative": {}},
        {"speculative": {"enabled": True, "mode": "auto", "width": None}},
        {"speculative": {"mode": "tree", "width": 5, "of another server": 3}},
        {"speculative": {"enabled": False}},
        {"speculative": {"enabled": False, "width": 63}},
    ]
    for one in fields:
        body = user(**one) if path == CHAT else {"prompt": "Hi", **one}
        assert client.post(path, json=body).status_code == 200
    asked = [(request.draft, request.draft_width) for request in engine.requests]
    assert asked == [(True, None)] * 4 + [(True, 5), (False, None), (False, 63)]


@pytest.mark.parametrize("path", [CHAT, COMPLETE])
@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("tree", "speculative"),
        ([], "speculative"),
        ({"enabled": "perhaps"}, "speculative.enabled"),
        ({"mode": "forest"}, "speculative.mode"),
        ({"mode": 3}, "speculative.mode"),
        ({"width": 0}, "speculative.width"),
        ({"width": 64}, "speculative.width"),
        ({"width": True}, "speculative.width"),
        ({"width": 2.5}, "speculative.width"),
        ({"width": "many"}, "speculative.width"),
    ],
)
def test_a_bad_value_is_refused_by_its_name(make_client, make_engine, user, path, value, param):
    fields = {"speculative": value}
    body = user(**fields) if path == CHAT else {"prompt": "Hi", **fields}
    response = make_client(make_engine("x")).post(path, json=body)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == param
    assert param in error["message"]
    assert "mode is auto, chain or tree" in error["message"], "the known modes are listed"
    assert "width is an integer between 1 and 63" in error["message"]


@pytest.mark.parametrize(
    ("asked", "drafts", "fallback"),
    [
        ({}, NO_DRAFTS, "no_drafter"),
        ({"enabled": True}, NO_DRAFTS, "no_drafter"),
        ({"width": 4}, NO_DRAFTS, "no_drafter"),
        ({"enabled": False}, NO_DRAFTS, None),
        ({"mode": "tree"}, CHAIN, "no_trees"),
        ({"mode": "chain"}, TREE, "no_chains"),
        ({"mode": "chain"}, CHAIN, None),
        ({"mode": "tree"}, TREE, None),
        ({"mode": "auto"}, TREE, None),
        ({}, DraftCounts("chain", failures=1), "drafter_failed"),
        (None, DraftCounts("chain", failures=1), "drafter_failed"),
        ({"mode": "chain"}, DraftCounts("chain", given_up=True), "drafter_failed"),
        (None, DraftCounts("chain", given_up=True), "drafter_failed"),
        (None, CHAIN, None),
    ],
)
def test_what_cannot_be_had_is_answered_with_the_reason(ask, asked, drafts, fallback):
    usage = ask(drafts, speculative=asked)["speculative"]
    assert usage["fallback"] == fallback
    assert usage["mode"] == drafts.mode


def test_there_are_no_figures_where_nobody_asks_and_nothing_drafts(ask):
    assert ask(NO_DRAFTS)["speculative"] is None
    assert ask(NO_DRAFTS, speculative={"enabled": False})["speculative"] == NOTHING


def test_metrics_are_by_position(make_client, make_engine, user):
    engine = make_engine("Hello", drafts=CHAIN)
    client = make_client(engine)
    client.post(CHAT, json=user(n=2))
    engine.drafts = NO_DRAFTS
    client.post(CHAT, json=user())
    engine.drafts = DraftCounts("chain", 2, 4, 4, 5, (2, 1), (1, 1))
    client.post(COMPLETE, json={"prompt": "Hi"})
    text = client.get("/metrics").text
    found = dict(re.findall(r"^kinfolk_((?:draft|accepted)\S*) (\S+)$", text, re.M))
    reached, kept = (10, 7, 4, 4, 2, 0), (7, 7, 4, 2, 0, 0)
    assert found == {
        "draft_steps_total": "10.0",
        "drafted_tokens_total": "44.0",
        "draft_depth_total": "44.0",
        "accepted_tokens_total": "20.0",
        **{f'draft_reached_total{{position="{i}"}}': f"{n}.0" for i, n in enumerate(reached)},
        **{f'draft_accepted_total{{position="{i}"}}': f"{n}.0" for i, n in enumerate(kept)},
    }


def test_the_line_of_a_request_without_drafts_does_not_speak_of_them(
    make_client, make_engine, user, caplog
):
    caplog.set_level("INFO", "kinfolk.server")
    client = make_client(make_engine("Hello", drafts=NO_DRAFTS))
    client.post(CHAT, json=user(speculative={"enabled": True}))
    assert "draft" not in caplog.text


def test_the_line_of_a_request_has_the_sums_of_its_choices(make_client, make_engine, user, caplog):
    caplog.set_level("INFO", "kinfolk.server")
    make_client(make_engine("Hello", drafts=TREE)).post(CHAT, json=user(n=2))
    figures = "14 of 36 drafted tokens accepted in 6 steps, 3.33 tokens a step (100 67 67 %)"
    assert f", stop, {figures}, " in caplog.text
