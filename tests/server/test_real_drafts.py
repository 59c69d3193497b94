"""Drafts over HTTP with a real engine: a drafter whose acceptance is known, so every figure is.

The drafter knows futures. Of each text there are copies that are wrong at one place: the first copy
that agrees with what has been said is what it proposes, so what is accepted ends where the next
wrong place is. ``simulated`` follows the same texts on the host.
"""

from __future__ import annotations

import itertools
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import Pipe

import httpx
import oracle_drafter
import pytest
import torch
from starlette.testclient import TestClient

from kinfolk.cli.http_process import RemoteRuntime
from kinfolk.engine.generation import Generation
from kinfolk.engine.options import GenerationOptions
from kinfolk.engine.prompt import token_prompt
from kinfolk.engine.remote import EngineClient, EngineServer
from kinfolk.engine.runtime import Runtime
from kinfolk.registry import Registry
from kinfolk.sched.events import Emitted
from kinfolk.server.app import create_app
from kinfolk.server.options import ServerOptions
from kinfolk.server.service import Service
from kinfolk.settings import load_settings

COMPLETE = "/v1/completions"
SLOTS, LONGEST = 4, 41
WIDTH, DEPTH, COLUMNS = 7, 6, 2

REACH = {11: 3, 6: 2, 1: 1}
"""Of trees with so many nodes, the tokens that the right path can accept. Column c costs 1 + c, and
the right candidates are in columns 0, 1, 0, ...: their paths cost 1, 3, 4, 6. There are 1, 3, 6 and
11 nodes that cost 1, 2, 3 and 4 at most."""


class Ask:
    """A request: its prompt, its sampling, and the places of the answer that drafts get wrong."""

    def __init__(self, prompt, wrong=(), new=LONGEST, **sampling):
        self.prompt, self.wrong, self.new = prompt, wrong, new
        self.sampling = {"temperature": 0, **sampling}

    def body(self, **fields):
        return {
            "prompt": self.prompt,
            "max_tokens": self.new,
            "ignore_eos": True,
            "logprobs": 0,
            **self.sampling,
            **fields,
        }

    def options(self):
        return GenerationOptions(max_tokens=self.new, ignore_eos=True, **self.sampling)


def prompt(number, length):
    return [(7 * number + place) % 700 + 10 for place in range(length)]


WARM = {"temperature": 0.9, "top_p": 0.95}
ASKS = {
    "plain": Ask(prompt(0, 70)),
    "mixed": Ask(prompt(1, 20), wrong=(2, 3, 9, 17, 30)),
    "short": Ask(prompt(2, 33), wrong=(5,), new=14),
    "warm": Ask(prompt(3, 40), wrong=(6, 21), **WARM, seed=11),
    "warmer": Ask(prompt(3, 40), wrong=(4,), **WARM, seed=12),
}


def open_case(cases, registry, **options):
    torch.set_num_threads(1)
    # Widths that follow the clock would make no run repeatable.
    options = {"draft_widths": "fixed", "dtype": "f32", "device": "cpu", **options}
    settings = load_settings(slots=SLOTS, context=512, **options)
    return Runtime.open(cases / "qwen35.gguf", settings, registry)


@pytest.fixture(scope="module")
def drafters():
    found = Registry.discover(load_settings())
    return replace(found, drafters={**found.drafters, "oracle": oracle_drafter.spec()})


@pytest.fixture(scope="module")
def plain(cases, drafters):
    with open_case(cases, drafters, draft="off") as runtime:
        yield runtime


@pytest.fixture(scope="module")
def answers(plain):
    """The tokens of each request without drafts."""

    def tokens(ask):
        generation = Generation(plain, token_prompt(plain, ask.prompt, "prompt"), ask.options())
        (request,) = generation.requests
        events = plain.engine.submit(request)
        return [token for event in events if isinstance(event, Emitted) for token in event.tokens]

    return {name: tokens(ask) for name, ask in ASKS.items()}


@pytest.fixture(scope="module")
def futures(answers):
    """The texts of the drafter: those with a wrong place first, in the order of the places."""
    texts = []
    for name, ask in ASKS.items():
        whole = [*ask.prompt, *answers[name]]
        for place in (len(ask.prompt) + wrong for wrong in ask.wrong):
            texts.append([*whole[:place], (whole[place] + 57) % 700, *whole[place + 1 :]])
        texts.append(whole)
    return texts


@pytest.fixture(scope="module")
def drafter_file(futures, tmp_path_factory):
    path = tmp_path_factory.mktemp("drafts") / "draft.gguf"
    return oracle_drafter.write(path, futures, depth=DEPTH + 1, columns=1)


@pytest.fixture(scope="module")
def tree_file(futures, tmp_path_factory):
    path = tmp_path_factory.mktemp("trees") / "draft.gguf"
    return oracle_drafter.write(path, futures, depth=DEPTH, columns=COLUMNS)


@pytest.fixture(scope="module")
def chains(cases, drafters, drafter_file):
    options = {"draft": "oracle", "draft_model": drafter_file, "draft_tokens": WIDTH}
    with open_case(cases, drafters, **options) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def trees(cases, drafters, tree_file):
    options = {"draft_model": tree_file, "draft_mode": "tree", "draft_budget": 11}
    options["draft"] = "oracle"
    with open_case(cases, drafters, **options) as runtime:
        yield runtime


def client_of(runtime):
    return TestClient(create_app(Service(runtime, ServerOptions("case"), SLOTS)))


def simulated(futures, ask, answer, *, width=WIDTH, tree=False):
    """``usage.speculative`` of a request, one step after the other on the host."""
    whole = [*ask.prompt, *answer]
    known = len(ask.prompt) + 1
    steps, drafted, depths, emitted = 0, 0, 0, 0
    kept = [0] * DEPTH if tree else [0] * width
    while known < len(whole):
        left = len(whole) - known
        rows = (width if left > 1 else 0) if tree else min(width, left - 1)
        if not rows:
            break  # the last token needs a step of its own, without drafts
        future = next(text for text in futures if text[:known] == whole[:known])
        reach = min(REACH[rows] if tree else rows, left - 1)
        accepted = 0
        while accepted < reach and future[known + accepted] == whole[known + accepted]:
            accepted += 1
        for place in range(accepted):
            kept[place] += 1
        steps, drafted, emitted = steps + 1, drafted + rows, emitted + accepted + 1
        depths += min(rows, DEPTH, left - 1) if tree else rows
        known += accepted + 1
    deepest = min(width, DEPTH) if tree else width
    return {
        "steps": steps,
        "drafted": drafted,
        "accepted": sum(kept),
        "accept_length": round(emitted / steps, 3),
        "accept_rate": round(sum(kept) / depths, 3),
        "per_position": [round(count / steps, 3) for count in kept[:deepest]],
        "mode": "tree" if tree else "chain",
        "fallback": None,
    }


def text_of(body):
    return [
        (choice["text"], choice["logprobs"]["tokens"], choice["finish_reason"])
        for choice in body["choices"]
    ]


# -- exact figures --------------------------------------------------------------------------------


def test_a_chain_that_is_right_has_the_figures_worked_out_by_hand(chains):
    """40 tokens behind the prompt's in steps of 8: drafts of 7, accepted whole."""
    figures = client_of(chains).post(COMPLETE, json=ASKS["plain"].body()).json()["usage"]
    assert figures["speculative"] == {
        "steps": 5,
        "drafted": 35,
        "accepted": 35,
        "accept_length": 8.0,
        "accept_rate": 1.0,
        "per_position": [1.0] * 7,
        "mode": "chain",
        "fallback": None,
    }


def test_a_tree_has_the_figures_worked_out_by_hand(trees):
    """40 tokens in steps of 4: three accepted of 11 rows that are up to 6 deep, at last up to 3."""
    figures = client_of(trees).post(COMPLETE, json=ASKS["plain"].body()).json()["usage"]
    assert figures["speculative"] == {
        "steps": 10,
        "drafted": 110,
        "accepted": 30,
        "accept_length": 4.0,
        "accept_rate": round(30 / (9 * 6 + 3), 3),
        "per_position": [1.0, 1.0, 1.0, 0.0, 0.0, 0.0],
        "mode": "tree",
        "fallback": None,
    }
    assert figures["completion_tokens_details"] == {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": 30,
        "rejected_prediction_tokens": 80,
    }


@pytest.mark.parametrize("name", ASKS)
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_figures_are_those_of_the_script_and_tokens_those_without_drafts(
    plain, chains, trees, futures, answers, name, tree
):
    ask = ASKS[name]
    body = client_of(trees if tree else chains).post(COMPLETE, json=ask.body()).json()
    expected = simulated(futures, ask, answers[name], width=11 if tree else WIDTH, tree=tree)
    assert body["usage"]["speculative"] == expected
    bare = client_of(plain).post(COMPLETE, json=ask.body()).json()
    assert text_of(body) == text_of(bare)
    assert bare["usage"]["speculative"] is None


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_a_stop_string_ends_the_text_wherever_steps_end(chains, trees, plain, tree):
    """Each stop string begins in one token and ends in the next, inside a step or across two."""
    ask = ASKS["plain"]
    (choice,) = client_of(plain).post(COMPLETE, json=ask.body()).json()["choices"]
    client, text = client_of(trees if tree else chains), choice["text"]
    pieces = choice["logprobs"]["tokens"][:12]
    tried = 0
    for left, right in itertools.pairwise(pieces):
        stop = left[-1:] + right[:1]
        if len(stop) < 2 or stop not in text:
            continue
        body = client.post(COMPLETE, json=ask.body(stop=stop)).json()
        (found,) = body["choices"]
        assert (found["text"], found["finish_reason"]) == (text[: text.index(stop)], "stop")
        tried += 1
    assert tried >= 8


@pytest.mark.parametrize(
    ("tree", "width"), [(False, 1), (False, 3), (False, 63), (True, 1), (True, 6), (True, 63)]
)
def test_a_width_is_honoured(chains, trees, futures, answers, tree, width):
    ask, runtime = ASKS["mixed"], trees if tree else chains
    asked = {"speculative": {"width": width}}
    body = client_of(runtime).post(COMPLETE, json=ask.body(**asked)).json()
    width = min(width, 11 if tree else WIDTH)
    expected = simulated(futures, ask, answers["mixed"], width=width, tree=tree)
    assert body["usage"]["speculative"] == expected
    whole = client_of(runtime).post(COMPLETE, json=ask.body()).json()
    assert text_of(body) == text_of(whole)


def test_the_last_chunk_of_a_stream_has_the_figures(chains, futures, answers, read_stream):
    ask = ASKS["mixed"]
    body = ask.body(stream=True, stream_options={"include_usage": True})
    *chunks, last = read_stream(client_of(chains).post(COMPLETE, json=body)).events
    assert last["usage"]["speculative"] == simulated(futures, ask, answers["mixed"])
    whole = client_of(chains).post(COMPLETE, json=ask.body()).json()
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]


def test_choices_are_counted_together(chains, futures, answers):
    """The second choice has the seed of the first and one: it is the other request."""
    assert (ASKS["warm"].sampling["seed"] + 1) == ASKS["warmer"].sampling["seed"]
    one, other = (simulated(futures, ASKS[n], answers[n]) for n in ("warm", "warmer"))
    body = client_of(chains).post(COMPLETE, json=ASKS["warm"].body(n=2)).json()
    found = body["usage"]["speculative"]
    for name in ("steps", "drafted", "accepted"):
        assert found[name] == one[name] + other[name]
    assert found["accept_rate"] == round(found["accepted"] / found["drafted"], 3)
    emitted = found["accepted"] + found["steps"]
    assert found["accept_length"] == round(emitted / found["steps"], 3)
    alone = [
        text_of(client_of(chains).post(COMPLETE, json=ASKS[n].body()).json())[0][0]
        for n in ("warm", "warmer")
    ]
    assert [choice["text"] for choice in body["choices"]] == alone


# -- requests beside one another ------------------------------------------------------------------


@pytest.mark.parametrize("split", [False, True], ids=["one process", "through a connection"])
def test_requests_beside_one_another_keep_their_figures_and_metrics_are_their_sums(
    chains, futures, answers, run_server, split
):
    """Four at once, one of them without drafts and one with short ones."""
    runtime, ends = chains, []
    if split:
        ours, theirs = Pipe()
        server = EngineServer(chains.engine, ours, lambda message: None)
        engine = EngineClient(theirs)
        engine.start()
        ends = [server, engine]
        text = chains.tokenizer, chains.chat, chains.chat_format
        facts = chains.card, chains.info, chains.facts
        runtime = RemoteRuntime(chains.name, engine, *text, *facts)
    url = run_server(Service(runtime, ServerOptions("case"), SLOTS)).url
    asked = {
        "plain": {"enabled": False},
        "mixed": {"width": 3},
        "short": {"enabled": True, "mode": "chain"},
        "warm": {"mode": "tree"},
    }
    expected = {
        "plain": {**dict.fromkeys(("steps", "drafted", "accepted"), 0), "mode": "off"},
        "mixed": simulated(futures, ASKS["mixed"], answers["mixed"], width=3),
        "short": simulated(futures, ASKS["short"], answers["short"]),
        "warm": simulated(futures, ASKS["warm"], answers["warm"]) | {"fallback": "no_trees"},
    }

    def post(name):
        body = ASKS[name].body(speculative=asked[name])
        return httpx.post(url + COMPLETE, json=body, timeout=60).json()

    try:
        with ThreadPoolExecutor(len(asked)) as pool:
            found = dict(zip(asked, pool.map(post, asked), strict=True))
        metrics = httpx.get(url + "/metrics").text
    finally:
        for end in ends:
            end.close()
    usages = {name: body["usage"]["speculative"] for name, body in found.items()}
    for name, figures in expected.items():
        assert usages[name] | figures == usages[name], name
    counters = dict(re.findall(r"^kinfolk_(\S+) (\d+)\.0$", metrics, re.M))
    for name, key in (
        ("draft_steps", "steps"),
        ("drafted_tokens", "drafted"),
        ("accepted_tokens", "accepted"),
    ):
        assert int(counters[f"{name}_total"]) == sum(usage[key] for usage in usages.values())
    for place in range(WIDTH):
        kept = sum(
            round(usage["per_position"][place] * usage["steps"])
            for usage in usages.values()
            if place < len(usage["per_position"])
        )
        assert int(counters[f'draft_accepted_total{{position="{place}"}}']) == kept
