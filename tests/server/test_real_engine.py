"""The whole path: the openai client, the server, the engine, and the reference case's weights."""

from __future__ import annotations

import sys
import threading
import types
from dataclasses import replace

import httpx
import openai
import pytest
import torch
from talk import eventually

from kinfolk import hookimpl
from kinfolk.descriptors import PolicySpec
from kinfolk.engine.runtime import Runtime
from kinfolk.loader import Provided
from kinfolk.registry import Registry
from kinfolk.sched.request import Request
from kinfolk.score_api import Scores
from kinfolk.server.options import ServerOptions
from kinfolk.server.service import Service
from kinfolk.settings import load_settings
from kinfolk.state.layout import pool_layouts

SLOTS = 8
LONGEST = 160
# Prompts of different lengths, from a token to several chunks, and answers of different lengths.
PROMPTS = [
    [(7 * number + place) % 700 + 10 for place in range(length)]
    for number, length in enumerate([200, 1, 63, 64, 65, 130, 17, 99])
]
LENGTHS = [LONGEST, 40, 60, 25, 80, 50, 30, 70]
CANCELLED = 4


def open_case(cases, **options):
    torch.set_num_threads(1)  # tiny matrices lose more time to waking threads than they gain
    settings = load_settings(slots=SLOTS, context=512, dtype="f32", device="cpu", **options)
    return Runtime.open(cases / "qwen35.gguf", settings, Registry.discover(settings))


@pytest.fixture(scope="module")
def runtime(cases):
    with open_case(cases, draft="off") as runtime:
        yield runtime


@pytest.fixture(scope="module")
def drafting_runtime(cases):
    with open_case(cases, draft="ngram") as runtime:
        yield runtime


@pytest.fixture
def connect(run_server):
    """``connect(runtime)``: a client of a server around it."""
    clients = []

    def connect(runtime):
        running = run_server(Service(runtime, ServerOptions("case"), SLOTS))
        url = running.url + "/v1"
        clients.append(openai.OpenAI(base_url=url, api_key="unused", max_retries=0))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def client(runtime, connect):
    return connect(runtime)


def complete(client, number, **fields):
    extra = {"ignore_eos": True, **fields.pop("extra_body", {})}
    return client.completions.create(
        model="case",
        prompt=PROMPTS[number],
        max_tokens=LENGTHS[number],
        temperature=0,
        logprobs=0,
        extra_body=extra,
        **fields,
    )


def tokens_of(answer):
    return answer.choices[0].text, answer.choices[0].logprobs.tokens


def test_eight_staggered_requests_say_what_each_says_alone(client, runtime):
    answers = [complete(client, number) for number in range(8)]
    assert [answer.usage.completion_tokens for answer in answers] == LENGTHS
    alone = [tokens_of(answer) for answer in answers]
    assert len({text for text, _ in alone}) == 8, "the answers would not tell requests apart"

    before = runtime.engine.stats()["decode_steps"]
    together: list[tuple[str, list[str]] | None] = [None] * 8
    begun = [threading.Event() for _ in range(8)]

    def ask(number):
        if number:
            # Each request arrives when the one before it is already being answered.
            assert begun[number - 1].wait(30)
        text, tokens = "", []
        for chunk in complete(client, number, stream=True):
            begun[number].set()
            text += chunk.choices[0].text
            tokens += chunk.choices[0].logprobs.tokens if chunk.choices[0].logprobs else []
            if number == CANCELLED and len(tokens) >= 5:
                return
        together[number] = (text, tokens)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()

    for number in range(8):
        expected = None if number == CANCELLED else alone[number]
        assert together[number] == expected, number
    steps = runtime.engine.stats()["decode_steps"] - before
    assert LONGEST - 1 <= steps <= 1.2 * LONGEST
    assert (runtime.engine.stats()["running"], runtime.engine.stats()["waiting"]) == (0, 0)


def test_a_seed_says_what_is_sampled_whoever_runs_beside_it(client):
    def sample(seed):
        return (
            client.completions.create(
                model="case", prompt=PROMPTS[3], max_tokens=30, temperature=1.0, seed=seed
            )
            .choices[0]
            .text
        )

    alone = [sample(seed) for seed in (1, 2, 3)]
    assert len(set(alone)) == 3
    together = client.completions.create(
        model="case", prompt=PROMPTS[3], max_tokens=30, temperature=1.0, seed=1, n=3
    )
    assert [choice.text for choice in together.choices] == alone


def test_a_stop_string_cuts_what_would_have_been_said(client):
    text, tokens = tokens_of(complete(client, 0))
    stop = next(token for token in tokens[10:] if len(token) > 2 and "�" not in token)
    answer = complete(client, 0, stop=stop)
    assert answer.choices[0].text == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"
    assert "".join(tokens_of(answer)[1]) == answer.choices[0].text


def test_the_likeliest_token_alone_is_what_greedy_takes_at_any_temperature(client):
    greedy = complete(client, 2)
    extra = {"top_k": 1, "ignore_eos": True}
    assert tokens_of(complete(client, 2, extra_body=extra)) == tokens_of(greedy)
    hot = client.completions.create(
        model="case",
        prompt=PROMPTS[2],
        max_tokens=LENGTHS[2],
        temperature=5,
        logprobs=0,
        extra_body=extra,
    )
    assert tokens_of(hot) == tokens_of(greedy)


def test_a_bias_forces_and_forbids_tokens(client, runtime):
    (comma,) = runtime.tokenizer.encode(",", add_bos=False)
    forced = complete(client, 2, logit_bias={str(comma): 100})
    assert forced.choices[0].text == "," * LENGTHS[2]
    first = tokens_of(complete(client, 2))[1][0]
    (banned,) = runtime.tokenizer.encode(first, add_bos=False)
    answer = complete(client, 2, extra_body={"logit_bias": {str(banned): False}})
    assert first not in tokens_of(answer)[1]


def test_penalties_stop_repetition(client, runtime):
    (comma,) = runtime.tokenizer.encode(",", add_bos=False)
    bias = {str(comma): 6}
    repeating = complete(client, 2, logit_bias=bias).choices[0].text.count(",")
    penalised = complete(client, 2, logit_bias=bias, frequency_penalty=2)
    assert 0 < penalised.choices[0].text.count(",") < repeating


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 0.8, "seed": 11, "top_p": 0.95},
        {"temperature": 1.0, "seed": 12, "extra_body": {"top_k": 40, "min_p": 0.01}},
        {"temperature": 0, "frequency_penalty": 0.2, "presence_penalty": 0.1},
        {"temperature": 0.9, "seed": 13, "extra_body": {"repetition_penalty": 1.05}},
    ],
    ids=["greedy", "top_p", "top_k and min_p", "penalties", "repetition"],
)
def test_drafts_change_nothing_that_is_said(connect, runtime, drafting_runtime, fields):
    (comma,) = runtime.tokenizer.encode(",", add_bos=False)
    body = {
        "model": "case",
        "prompt": PROMPTS[3] * 2,
        "max_tokens": 60,
        "logprobs": 0,
        # The bias makes the token frequent enough that the output repeats.
        "logit_bias": {str(comma): 7},
        **fields,
    }
    body["extra_body"] = {"ignore_eos": True, **fields.get("extra_body", {})}
    plain = connect(runtime).completions.create(**body)
    drafted = connect(drafting_runtime).completions.create(**body)
    assert tokens_of(drafted) == tokens_of(plain)
    details = drafted.usage.completion_tokens_details
    assert details.accepted_prediction_tokens > 0
    assert plain.usage.completion_tokens_details.accepted_prediction_tokens == 0


# -- the prefix cache ------------------------------------------------------------------------------


def counters(url):
    """The engine's counters in ``/metrics``."""
    lines = httpx.get(url).text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if line.startswith("kinfolk_")]
    return {name.removeprefix("kinfolk_engine_"): float(value) for name, value in pairs}


def test_metrics_say_what_the_prefix_cache_has_and_has_done(connect, cases, tmp_path):
    """One checkpoint fits the device, so the second prompt moves the first one to the host."""
    options = {"checkpoints": 1, "cache_memory": 0.1, "cache_disk": 0.1, "cache_dir": tmp_path}
    with open_case(cases, draft="off", **options) as runtime:
        client = connect(runtime)
        url = str(client.base_url).replace("/v1/", "/metrics")
        before = counters(url)
        for prompt in (PROMPTS[0], PROMPTS[5]):
            request = Request("stored", tuple(prompt), 1, checkpoints=(len(prompt),))
            list(runtime.engine.submit(request))
        usages = []
        for prompt in (PROMPTS[0], PROMPTS[1]):
            answer = client.completions.create(
                model="case", prompt=[*prompt, 10, 11], max_tokens=1, temperature=0
            )
            usages.append(answer.usage.prompt_tokens_details.model_dump())
        eventually(lambda: counters(url)["disk_points"] > 0)
        found = counters(url)
    assert before["prefixes"] == before["prefixes_device_bytes"] == before["host_bytes"] == 0
    assert [usage["cached_tokens"] for usage in usages] == [200, 0]
    assert usages[0]["cached_tokens_from"] == {"host": 200}
    assert "cached_tokens_from" not in usages[1]
    assert (found["prefix_lookups"], found["prefix_hits"], found["prefix_tokens"]) == (4, 1, 200)
    assert found["kinfolk_cached_tokens_total"] == 200
    assert found["prefixes"] == found["prefixes_device"] + found["prefixes_host"]
    assert min(found["prefixes_device"], found["prefixes_host"]) > 0
    assert min(found["prefixes_device_bytes"], found["host_bytes"], found["disk_bytes"]) > 0
    assert found["demotions"] > 0
    assert min(found["saves"], found["loads"]) > 0
    assert found["disk_spills"] == found["disk_points"]
    reasons = {name for name in found if "_drops_" in name}
    memory = {"room", "superseded", "choices", "fault"}
    disk = {"lost", "limit", "full", "host", "other"}
    assert reasons == {f"prefix_drops_{each}" for each in memory} | {
        f"disk_drops_{each}" for each in disk
    }


@pytest.fixture(scope="module")
def paged_runtime(cases):
    settings = load_settings(
        slots=2,
        context=1024,
        dtype="f32",
        device="cpu",
        draft="off",
        kvflash=512,
        kvflash_burst=1,
    )
    with Runtime.open(cases / "qwen35.gguf", settings, Registry.discover(settings)) as runtime:
        yield runtime


def test_usage_says_what_is_not_exact_and_a_request_may_refuse_that(paged_runtime, connect):
    client = connect(paged_runtime)
    prompt = [(7 * place) % 700 + 10 for place in range(600)]

    def complete(tokens, **body):
        return client.completions.create(
            model="case", prompt=tokens, max_tokens=8, temperature=0, extra_body=body
        ).usage.to_dict()

    assert complete(prompt)["exact"] is False
    assert "exact" not in complete(prompt[:400], kvflash="off")
    with pytest.raises(openai.BadRequestError, match=r"600 prompt tokens .* room for 8 chunks"):
        complete(prompt, kvflash="off")
    with pytest.raises(openai.BadRequestError, match="kvflash"):
        complete(prompt, kvflash="on")


class AskedAgain:
    """Wants the chunk after the one that it wanted before."""

    @hookimpl
    def score_chunks(self, query):
        scores = torch.zeros(query.chunks)
        scores[1 + query.length // 16 % (query.chunks - 1)] = 1
        return Scores(scores)


def test_metrics_say_what_is_paged_and_what_that_takes(connect, cases, monkeypatch):
    module = types.ModuleType("asked_again")
    module.create = lambda info: AskedAgain()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = PolicySpec("asked-again", "asked_again:create")
    settings = load_settings(
        slots=2,
        context=1024,
        dtype="f32",
        device="cpu",
        draft="off",
        kvflash=640,
        kvflash_burst=2,
        kvflash_tau=16,
        policy="asked-again",
    )
    registry = replace(
        Registry.discover(settings), policies={spec.name: Provided(spec, "test", "the test")}
    )
    with Runtime.open(cases / "qwen35.gguf", settings, registry) as runtime:
        url = str(connect(runtime).base_url).replace("/v1/", "/metrics")
        before = counters(url)
        tokens = tuple((7 * place) % 700 + 10 for place in range(900))
        held = threading.Event()
        runtime.engine.submit(Request("a", tokens, 90, grant=60), None, lambda _: held.set())
        assert held.wait(60)
        during = counters(url)
        runtime.engine.cancel("a")
        eventually(lambda: counters(url)["running"] == 0)
        after = counters(url)
        # All that was saved are chunks, with keys and values of all layers.
        block_bytes = pool_layouts(runtime.loaded.plan)[0].block_bytes
    assert [before[f"kvflash_{name}"] for name in ("tokens", "tau", "scorers")] == [640, 16, 2]
    known = -(-(900 + 59) // 64)
    assert during["kvflash_sequences"] == 1
    assert during["kvflash_resident_chunks"] + during["kvflash_away_chunks"] == known
    assert 0 < during["kvflash_resident_chunks"] <= 10
    assert during["kvflash_selections"] >= 4
    assert during["kvflash_recalls"] > 0
    assert during["kvflash_evictions"] - during["kvflash_recalls"] == during["kvflash_away_chunks"]
    for name in ("scoring", "choosing", "moving"):
        assert during[f"kvflash_{name}_us"] > 0
    assert during["saved_bytes"] == during["saves"] * block_bytes
    assert during["loaded_bytes"] == during["loads"] * block_bytes > 0
    assert during["kvflash_recalls"] == during["loads"]
    assert during["host_bytes"] > 0
    for name in ("sequences", "resident_chunks", "away_chunks"):
        assert after[f"kvflash_{name}"] == 0
    assert after["host_bytes"] == before["host_bytes"] == 0
