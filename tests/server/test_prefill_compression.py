"""Compressed prompts through the server: what is left out, what never is, and what is said of
it."""

from __future__ import annotations

import json
import logging
import socket
import threading
from dataclasses import replace
from multiprocessing import Pipe

import httpx
import pytest
from compression_scenes import compressing_runtime, ordered, story
from starlette.testclient import TestClient
from talk import eventually

from kinfolk.engine.compression import ChatSource, Compressor, TextSource
from kinfolk.engine.prompt import chat_prompt
from kinfolk.engine.remote import EngineClient, EngineServer
from kinfolk.engine.text import open_text
from kinfolk.registry import Registry
from kinfolk.sched.prompt_scoring import Scored, ScorerFacts
from kinfolk.server.app import create_app
from kinfolk.server.options import ServerOptions
from kinfolk.server.service import Service
from kinfolk.settings import load_settings
from kinfolk.text.chat import ChatTemplate

QUESTION = "Which door does the stone of the river open?"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def runtime(cases, template):
    path = cases / "qwen35.gguf"
    with compressing_runtime(path, path, template, prefill_compression_threshold=1000) as runtime:
        yield runtime


@pytest.fixture
def fresh(runtime):
    """The same runtime with a compressor that has failed never and remembers nothing."""
    return with_scoring(runtime, runtime.engine.scoring)


def with_scoring(runtime, scoring, *, context=None, scorer_tokenizer=None, **options):
    old = runtime.compressor
    facts = old.facts if context is None else ScorerFacts(context)
    compressor = Compressor(
        replace(old.options, **options),
        facts,
        scoring,
        runtime.tokenizer,
        scorer_tokenizer or runtime.tokenizer,
    )
    return replace(runtime, compressor=compressor)


def client_of(runtime):
    service = Service(runtime, ServerOptions("tiny"), 4, runtime.compressor)
    return TestClient(create_app(service), raise_server_exceptions=False)


def ask(client, messages, mode="always", **fields):
    body = {"messages": messages, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields}
    if mode is not None:
        body["prefill_compression"] = mode
    return client.post("/v1/chat/completions", json=body)


def figures(response):
    assert response.status_code == 200, response.text
    usage = response.json()["usage"]
    return usage, usage.get("prefill_compression")


def document(words=160, seed=0):
    return [
        {"role": "system", "content": "You are terse. Answer in one word."},
        {"role": "user", "content": story(words, seed)},
        {"role": "user", "content": QUESTION},
    ]


def read(runtime, messages, mode="always"):
    """The text of a conversation as it is read, and its prompt."""
    prompt = chat_prompt(runtime, messages)
    done = runtime.compressor.compressed(runtime, prompt, ChatSource(messages, {}), mode)
    return runtime.tokenizer.decode(done.tokens), done


def test_half_an_emoji_in_a_prompt_switches_nothing_off(fresh):
    """As clients send it that cut texts by UTF-16."""
    body = {"prompt": f"{story(160)}\ud83d\n\n{QUESTION}", "max_tokens": 4, "ignore_eos": True}
    response = client_of(fresh).post(
        "/v1/completions", content=json.dumps({**body, "prefill_compression": "always"})
    )
    _, found = figures(response)
    assert found["skipped"] is None


def test_half_an_emoji_in_a_conversation_switches_nothing_off(fresh):
    half = {"role": "user", "content": f"{story(160)} \ud83d and more"}
    turns = [{"role": "assistant", "content": "Noted."}, {"role": "user", "content": QUESTION}]
    for messages in ([half, turns[1]], [half, *turns]):
        text, prompt = read(fresh, messages)
        assert prompt.compression.skipped is None
        assert QUESTION in text


def test_a_scorer_whose_tokens_spell_a_block_as_a_blank_places_them(cases, template):
    with compressing_runtime(cases / "qwen35.gguf", cases / "gemma4.gguf", template) as runtime:
        messages = document(160)
        messages[1]["content"] = messages[1]["content"].replace(" ", " \u2581\u2582 ", 9)
        text, prompt = read(runtime, messages)
        assert prompt.compression.skipped is None
        kept = text.split("<|im_start|>user\n")[1].split("<|im_end|>")[0].split()
        assert ordered(kept, messages[1]["content"].split())


def test_an_answer_of_which_the_template_leaves_a_part_out_is_not_compressed(fresh):
    """Cut, the end of its thought could be missing, and the template would leave nothing out."""
    source = fresh.chat.source.replace("m.content", "(m.content.split('</think>')|last)")
    assert source != fresh.chat.source
    talking = replace(fresh, chat=ChatTemplate(source, fresh.tokenizer, fresh.chat_format))
    answer = f"<think>{story(300, 2)}</think>\n\nIt is 42. {story(100, 3)}"
    talk = [
        {"role": "user", "content": story(160)},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": "So."},
        {"role": "user", "content": QUESTION},
    ]
    text, prompt = read(talking, talk)
    assert prompt.compression.skipped is None
    assert "2x" not in text
    assert f"It is 42. {story(100, 3)}" in text


# -- what is left out -----------------------------------------------------------------------------


def test_usage_has_both_lengths_and_the_model_reads_the_shorter_one(fresh):
    client = client_of(fresh)
    usage, found = figures(ask(client, document()))
    full, _ = figures(ask(client, document(), mode="off"))
    assert found["skipped"] is None
    assert found["original_tokens"] == full["prompt_tokens"]
    assert found["compressed_tokens"] == usage["prompt_tokens"]
    assert usage["prompt_tokens"] < 0.6 * full["prompt_tokens"]
    # Its time is part of that to the first token.
    assert 0 < found["compression_ms"] <= usage["timings"]["prefill_ms"] + 0.1


def test_headers_instructions_and_the_question_stay_and_words_stay_whole(fresh):
    messages = document()
    full = fresh.tokenizer.decode(chat_prompt(fresh, messages).tokens)
    text, prompt = read(fresh, messages)
    assert len(prompt.tokens) < 0.6 * len(chat_prompt(fresh, messages).tokens)
    for marker in ("<|im_start|>system\n", "<|im_start|>user\n", "<|im_end|>\n"):
        assert text.count(marker) == full.count(marker)
    assert text.endswith(f"{QUESTION}<|im_end|>\n<|im_start|>assistant\n")
    assert "You are terse. Answer in one word.<|im_end|>" in text
    kept = text.split("<|im_start|>user\n")[1].split("<|im_end|>")[0].split()
    words = messages[1]["content"].split()
    assert 0 < len(kept) < 0.7 * len(words)
    assert ordered(kept, words), "whole words, in their order"


def test_what_the_question_quotes_is_kept_although_nobody_knows_its_score(fresh):
    words = story(220).split()
    quoted = " ".join(words[103:107])
    messages = [
        {"role": "user", "content": " ".join(words)},
        {"role": "user", "content": f"What comes after {quoted} in it?"},
    ]
    text, _ = read(fresh, messages)
    assert quoted in text.split("<|im_end|>")[0]


def test_of_one_long_message_the_last_paragraph_is_the_question(fresh):
    messages = [{"role": "user", "content": f"{story(220)}\n\n{QUESTION}"}]
    text, prompt = read(fresh, messages)
    assert prompt.compression.skipped is None
    assert text.count(QUESTION) == 1


def test_a_plain_text_is_compressed_and_ids_are_not(fresh):
    client, text = client_of(fresh), f"{story(220)}\n\n{QUESTION}"
    body = {"prompt": text, "max_tokens": 2, "prefill_compression": "always"}
    _, found = figures(client.post("/v1/completions", json=body))
    assert found["skipped"] is None
    assert found["compressed_tokens"] < 0.6 * found["original_tokens"]
    ids = fresh.tokenizer.encode(text)
    _, found = figures(client.post("/v1/completions", json={**body, "prompt": ids}))
    assert found["skipped"] == "ids"
    assert found["compressed_tokens"] == len(ids)


def test_a_text_longer_than_the_scorer_reads_is_read_in_parts(fresh):
    small = with_scoring(fresh, fresh.engine.scoring, context=300)
    before = fresh.engine.stats()["scored_texts"]
    text, prompt = read(small, document())
    assert prompt.compression.skipped is None
    assert fresh.engine.stats()["scored_texts"] - before > 3
    assert QUESTION in text


@pytest.mark.parametrize("scorer", ["laguna", "gemma4"])
def test_a_scorer_with_other_tokens_reads_the_text(cases, template, scorer):
    path = cases / f"{scorer}.gguf"
    with compressing_runtime(cases / "qwen35.gguf", path, template) as runtime:
        settings = load_settings()
        other = open_text(path, settings, Registry.discover(settings))[0]
        assert not runtime.tokenizer.has_tokens_of(other)
        messages = document(160)
        text, prompt = read(runtime, messages)
        assert prompt.compression.skipped is None
        kept = text.split("<|im_start|>user\n")[1].split("<|im_end|>")[0].split()
        assert 0 < len(kept) < 160
        assert ordered(kept, messages[1]["content"].split())


# -- what is never compressed ---------------------------------------------------------------------


def test_requests_with_tools_or_their_results_are_read_in_full(fresh):
    client = client_of(fresh)
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    results = [
        *document(80)[:2],
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": story(160)},
    ]
    for messages, fields in [
        (document(), {"tools": [TOOL]}),
        (document(), {"tools": [TOOL], "tool_choice": "none"}),
        (results, {}),
    ]:
        usage, found = figures(ask(client, messages, **fields))
        assert found["skipped"] == "tools"
        assert found["compressed_tokens"] == found["original_tokens"] == usage["prompt_tokens"]


def test_auto_starts_at_the_threshold_and_requests_opt_in_and_out(fresh):
    long, short = document(160), document(40)
    lengths = [len(chat_prompt(fresh, each).tokens) for each in (short, long)]
    assert lengths[0] < 1000 <= lengths[1]
    client = client_of(fresh)
    assert figures(ask(client, long, mode="auto"))[1]["skipped"] is None
    assert figures(ask(client, short, mode="auto"))[1]["skipped"] == "short"
    assert figures(ask(client, long, mode=None))[1] is None, "the server's default is off"
    on = client_of(with_scoring(fresh, fresh.engine.scoring, mode="auto"))
    assert figures(ask(on, long, mode=None))[1]["skipped"] is None
    assert figures(ask(on, long, mode="off"))[1] is None


def test_a_prompt_with_nothing_to_leave_out_is_read_in_full(fresh):
    client = client_of(fresh)
    _, found = figures(ask(client, [{"role": "user", "content": QUESTION}]))
    assert found["skipped"] == "nothing"


def test_without_a_scorer_the_request_is_told(make_client, make_engine, user):
    client = make_client(make_engine("Hello"))
    assert client.post("/v1/chat/completions", json=user(prefill_compression="off")).is_success
    refused = client.post("/v1/chat/completions", json=user(prefill_compression="auto"))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "prefill_compression"
    assert "--prefill-compression-drafter" in refused.json()["error"]["message"]
    wrong = client.post("/v1/chat/completions", json=user(prefill_compression="some"))
    assert wrong.status_code == 400
    assert "one of off, auto, always" in wrong.json()["error"]["message"]


# -- conversations --------------------------------------------------------------------------------


def test_of_a_conversation_old_messages_are_compressed_once_and_the_last_two_never(fresh):
    def scored():
        return fresh.engine.stats()["scored_texts"]

    talk = [document()[0], {"role": "user", "content": story(160)}]
    talk += [{"role": "assistant", "content": "Noted."}, {"role": "user", "content": story(120, 1)}]
    before = scored()
    first, prompt = read(fresh, talk)
    assert prompt.compression.skipped is None
    assert scored() == before + 1
    assert story(120, 1) in first, "the last message is whole, however long it is"
    aged = first.split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
    assert len(aged) < 0.6 * len(story(160))
    assert ordered(aged.split(), story(160).split())

    talk += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": QUESTION}]
    second, _ = read(fresh, talk)
    assert scored() == before + 2, "only the message that has aged meanwhile is scored"
    assert second.startswith(first[: first.index(story(120, 1))]), "the text of turn one stays"
    again, _ = read(fresh, talk)
    assert again == second
    assert scored() == before + 2
    forgetful = with_scoring(fresh, fresh.engine.scoring)
    assert read(forgetful, talk)[0] == second, "it does not depend on what is remembered"


def test_a_later_turn_starts_from_the_compressed_turn_before_it(fresh):
    client = client_of(fresh)
    talk = [document()[0], {"role": "user", "content": story(160, 3)}]
    talk += [{"role": "assistant", "content": "Noted."}, {"role": "user", "content": QUESTION}]
    usage, _ = figures(ask(client, talk))
    talk += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Why?"}]
    later, _ = figures(ask(client, talk))
    cached = later["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0.6 * usage["prompt_tokens"]


# -- the prefix cache -----------------------------------------------------------------------------


def test_nothing_of_a_compressed_prompt_is_taken_for_the_full_one(cases, template, fresh):
    messages = document(160, seed=5)
    client = client_of(fresh)
    _, found = figures(ask(client, messages, max_tokens=8))
    assert found["skipped"] is None
    full = ask(client, messages, mode="off", max_tokens=8)
    usage, _ = figures(full)
    assert usage["prompt_tokens"] == found["original_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    path = cases / "qwen35.gguf"
    with compressing_runtime(path, path, template) as other:
        alone = ask(client_of(other), messages, mode="off", max_tokens=8)
        figures(alone)
        assert alone.json()["choices"] == full.json()["choices"]
        compressed = ask(client_of(other), messages, max_tokens=8)
        again = ask(client, messages, max_tokens=8)
        assert compressed.json()["choices"] == again.json()["choices"]


# -- failures -------------------------------------------------------------------------------------


class Broken:
    """Scores no text."""

    def __init__(self):
        self.asked = 0

    def submit(self, request, on_scored):
        self.asked += 1
        on_scored(Scored(request.id, error="the device has gone"))

    def cancel(self, request_id):
        pass


def test_after_a_failure_the_prompt_is_read_in_full_and_the_next_ones_wait(runtime, caplog):
    scoring = Broken()
    broken = with_scoring(runtime, scoring)
    client = client_of(broken)
    expected = ask(client, document(), mode="off").json()["choices"]
    with caplog.at_level(logging.WARNING, "kinfolk.engine.compression"):
        response = ask(client, document())
    usage, found = figures(response)
    assert found["skipped"] == "failed"
    assert usage["prompt_tokens"] == found["original_tokens"]
    assert response.json()["choices"] == expected
    lines = [each.getMessage() for each in caplog.records]
    assert [line for line in lines if "read in full" in line] == [
        "a prompt is read in full, as its compression failed: the device has gone"
    ]
    assert figures(ask(client, document()))[1]["skipped"] == "waiting"
    assert scoring.asked == 1, "while it waits, nobody is asked"
    metrics = client.get("/metrics").text
    assert "kinfolk_prefill_compression_failures_total 1.0" in metrics
    assert 'kinfolk_prefill_compression_skipped_total{reason="waiting"} 1.0' in metrics


class Slow(Broken):
    """Answers when it is told to."""

    def __init__(self):
        super().__init__()
        self.begun = threading.Event()
        self.listeners = []
        self.given_up = threading.Event()

    def submit(self, request, on_scored):
        self.listeners.append(lambda: on_scored(Scored(request.id, error="too late")))
        self.begun.set()

    def cancel(self, request_id):
        self.given_up.set()


QUICK = {"ping_after": 0.05, "headers_after": 0.05}


@pytest.mark.parametrize("streams", [False, True])
def test_a_client_that_leaves_while_its_prompt_is_scored_gives_it_up(runtime, run_server, streams):
    """Of a stream the headers are there already."""
    scoring = Slow()
    slow = with_scoring(runtime, scoring)
    service = Service(slow, ServerOptions("tiny", **QUICK), 1, slow.compressor)
    running = run_server(service)
    body = {"messages": document(), "prefill_compression": "always", "max_tokens": 2}
    body |= {"stream": True} if streams else {}
    request = httpx.Request("POST", running.url + "/v1/chat/completions", json=body)
    length = len(request.content)
    with socket.create_connection((request.url.host, request.url.port)) as client:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length}"
        client.sendall(f"{head}\r\nContent-Type: application/json\r\n\r\n".encode())
        client.sendall(request.content)
        assert scoring.begun.wait(30)
        if streams:
            client.settimeout(30)
            assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")
    assert scoring.given_up.wait(30)
    eventually(lambda: service.in_flight == 0)


@pytest.mark.parametrize("route", ["chat/completions", "completions"])
def test_a_stream_is_kept_alive_while_its_prompt_is_scored(runtime, run_server, read_stream, route):
    scoring = Slow()
    slow = with_scoring(runtime, scoring)
    service = Service(slow, ServerOptions("tiny", **QUICK), 1, slow.compressor)
    running = run_server(service)
    body = {"prefill_compression": "always", "max_tokens": 2, "stream": True, "ignore_eos": True}
    body |= {"stream_options": {"include_usage": True}}
    text = {"messages": document()} if route.startswith("chat") else {"prompt": story(220)}
    comments = []

    def seen(line):
        comments.append(line.startswith(":"))
        if sum(comments) == 3:
            scoring.listeners[0]()

    with httpx.stream("POST", f"{running.url}/v1/{route}", json=body | text) as response:
        assert response.status_code == 200
        lines = []
        for line in response.iter_lines():
            lines.append(line)
            seen(line)
    assert sum(comments) >= 3
    assert lines.index(": ping") < next(n for n, line in enumerate(lines) if "data" in line)
    last = json.loads([line for line in lines if line.startswith("data: {")][-1][6:])
    assert last["usage"]["completion_tokens"] == 2
    assert last["usage"]["prefill_compression"]["skipped"] == "failed"
    assert lines[-2:] == ["data: [DONE]", ""]
    eventually(lambda: service.in_flight == 0)


def test_what_fails_after_the_headers_is_told_as_an_event(runtime, run_server):
    """The server begins to drain while a prompt is scored."""
    scoring = Slow()
    slow = with_scoring(runtime, scoring)
    service = Service(slow, ServerOptions("tiny", **QUICK), 1, slow.compressor)
    running = run_server(service)
    body = {"messages": document(), "prefill_compression": "always", "stream": True}
    url = f"{running.url}/v1/chat/completions"
    with httpx.stream("POST", url, json=body) as response:
        lines = response.iter_lines()
        assert next(lines) == ": ping"
        service.draining = True
        scoring.listeners[0]()
        events = [line[6:] for line in lines if line.startswith("data: ")]
    assert [json.loads(line)["error"]["code"] for line in events[:-1]] == ["draining"]
    assert events[-1] == "[DONE]"
    assert service.in_flight == 0


def test_prompts_that_are_being_scored_are_in_flight(runtime):
    scoring, answers = Slow(), []
    slow = with_scoring(runtime, scoring)
    service = Service(slow, ServerOptions("tiny", max_queue=0), 1, slow.compressor)
    client = TestClient(create_app(service), raise_server_exceptions=False)
    with client:
        thread = threading.Thread(target=lambda: answers.append(ask(client, document())))
        thread.start()
        assert scoring.begun.wait(30)
        refused = ask(client, document(40), mode="off")
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        scoring.listeners[0]()
        thread.join(60)
    assert figures(answers[0])[1]["skipped"] == "failed"
    assert service.in_flight == 0


def test_metrics_count_both_lengths(fresh):
    client = client_of(fresh)
    _, found = figures(ask(client, document()))
    metrics = client.get("/metrics").text
    for name in ("original_tokens", "compressed_tokens"):
        assert f"kinfolk_prefill_compression_{name}_total {float(found[name])}" in metrics
    assert "kinfolk_prefill_compression_prompts_total 1.0" in metrics


def test_scores_that_are_not_finite_are_a_failure(fresh, monkeypatch):
    scorer = fresh.scorer
    read_scores = scorer.reading.scores
    monkeypatch.setattr(scorer.reading, "scores", lambda: read_scores() * float("nan"))
    _, prompt = read(fresh, document())
    assert prompt.compression.skipped == "failed"
    assert fresh.compressor.counts()["failures"] == 1


def test_an_error_in_the_scorer_fails_no_other_request(fresh, monkeypatch):
    client = client_of(fresh)
    expected = ask(client, document(40), mode="off", max_tokens=60).json()["choices"]
    begun, go_on = threading.Event(), threading.Event()

    def fail(*_):
        begun.set()
        assert go_on.wait(30)
        raise RuntimeError("a slice broke")

    monkeypatch.setattr(fresh.scorer.reading, "begin", fail)
    answers = []
    asking = threading.Thread(target=lambda: answers.append(ask(client, document())))
    asking.start()
    assert begun.wait(30)
    beside = threading.Thread(
        target=lambda: answers.append(ask(client, document(40), mode="off", max_tokens=60))
    )
    beside.start()
    go_on.set()
    for thread in (asking, beside):
        thread.join(60)
    found = {bool(figures(each)[1]): each for each in answers}
    assert figures(found[True])[1]["skipped"] == "failed"
    assert found[False].json()["choices"] == expected
    monkeypatch.undo()
    retry = with_scoring(fresh, fresh.engine.scoring)
    assert read(retry, document())[1].compression.skipped is None, "the scorer works again"


def test_a_prompt_longer_than_the_context_is_answered_if_it_is_compressed(cases, template):
    path = cases / "qwen35.gguf"
    with compressing_runtime(path, path, template, context=900) as runtime:
        client = client_of(runtime)
        refused = ask(client, document(), mode="off")
        assert refused.status_code == 400
        assert "maximum context length" in refused.json()["error"]["message"]
        usage, found = figures(ask(client, document()))
        assert found["original_tokens"] > 900 > usage["prompt_tokens"]
        broken = client_of(with_scoring(runtime, Broken()))
        assert ask(broken, document()).status_code == 400


def test_giving_up_frees_the_scorer(fresh):
    messages = document()
    job = fresh.compressor.begin(
        fresh, chat_prompt(fresh, messages), ChatSource(messages, {}), "always"
    )
    scores = fresh.compressor.score(job)
    scores.cancel()
    text, prompt = read(fresh, messages)
    assert prompt.compression.skipped is None
    assert QUESTION in text


def test_through_a_connection_the_prompt_is_the_same(fresh):
    ours, theirs = Pipe()
    server = EngineServer(fresh.engine, ours, lambda message: None)
    engine = EngineClient(theirs)
    engine.start()
    try:
        remote = with_scoring(fresh, engine.scoring)
        assert read(remote, document())[0] == read(fresh, document())[0]
    finally:
        server.close()
        engine.close()
    assert read(with_scoring(fresh, engine.scoring), document())[1].compression.skipped == "failed"


def test_a_text_is_scored_like_the_conversation_around_it(fresh):
    """The same compressor serves plain prompts of the command line."""
    from kinfolk.engine.prompt import text_prompt

    text = f"{story(220)}\n\n{QUESTION}"
    prompt = text_prompt(fresh, text)
    done = fresh.compressor.compressed(fresh, prompt, TextSource(text), "always")
    assert done.compression.skipped is None
    assert fresh.tokenizer.decode(done.tokens).endswith(QUESTION)


def test_a_text_that_cannot_be_compressed_holds_up_no_other(fresh, monkeypatch, caplog):
    def refuse(*_):
        raise ValueError("its tokens spell another text")

    with monkeypatch.context() as patch:
        patch.setattr("kinfolk.engine.compression.token_places", refuse)
        assert read(fresh, document())[1].compression.skipped == "failed"
    assert "its tokens spell another text" in caplog.text
    assert read(fresh, document())[1].compression.skipped is None
    assert fresh.compressor.counts()["failures"] == 1
