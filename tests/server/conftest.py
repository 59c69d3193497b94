"""A server without a model: the engine is a fake with scripted answers, the rest is real."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from kinfolk.descriptors import ModelCard
from kinfolk.engine.facts import EngineFacts
from kinfolk.engine.overview import EngineOverview
from kinfolk.engine.text import open_text
from kinfolk.errors import EngineError
from kinfolk.model_api import ModelInfo
from kinfolk.plans import Paged, Section, StatePlan
from kinfolk.registry import Registry
from kinfolk.sched.draft_counts import DraftCounts
from kinfolk.sched.events import Emitted, Event, Finished, Usage
from kinfolk.sched.plan import TokenLogprob
from kinfolk.sched.request import FinishReason, Request
from kinfolk.sched.view import SequenceView
from kinfolk.server.app import create_app
from kinfolk.server.lifecycle import GracefulServer, bind
from kinfolk.server.options import ServerOptions
from kinfolk.server.service import Service
from kinfolk.settings import load_settings
from kinfolk.text.chat import ChatTemplate
from kinfolk.text.formats import ChatFormat

TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }}\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments.n }})"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)

Step = tuple[int, ...] | float | Exception
"""Tokens of one step, seconds of silence, or a failure."""


DRAFTS = DraftCounts("chain", 2, 8, 8, 8, (2, 2, 2, 1), (2, 2, 1, 1))
"""Two chains of four: one accepted, of the other the first two tokens."""


class FakeTicket:
    def __init__(self, request: Request):
        self.request_id = request.id
        self.cancelled: FinishReason | None = None
        self.wake = threading.Event()

    def cancel(self, reason: FinishReason = FinishReason.CANCELLED) -> None:
        self.cancelled = self.cancelled or reason
        self.wake.set()


@dataclass
class FakeEngine:
    """Sends the steps of ``reply(request)`` for each request, in a thread of its own.

    At most ``slots`` requests run at once. Requests end as in an engine: by stop tokens,
    ``max_new``, cancellation or failure.
    """

    reply: Callable[[Request], Iterable[Step]]
    slots: int = 64
    requests: list[Request] = field(default_factory=list)
    ended: list[Finished] = field(default_factory=list)
    refuse: Exception | None = None
    drafts: DraftCounts = DRAFTS
    views: tuple[SequenceView, ...] = ()
    looks: int = 0

    def __post_init__(self) -> None:
        self._free = threading.Semaphore(self.slots)

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> FakeTicket:
        if self.refuse is not None:
            raise self.refuse
        self.requests.append(request)
        ticket = FakeTicket(request)
        threading.Thread(target=self._play, args=(request, ticket, on_event), daemon=True).start()
        return ticket

    def _play(self, request: Request, ticket: FakeTicket, send: Callable[[Event], None]) -> None:
        while not self._free.acquire(timeout=0.01):
            if ticket.cancelled:
                self._finish(request, send, 0, FinishReason.CANCELLED)
                return
        try:
            self._steps(request, ticket, send)
        finally:
            self._free.release()

    def _steps(self, request: Request, ticket: FakeTicket, send: Callable[[Event], None]) -> None:
        emitted = 0
        for step in self.reply(request):
            if isinstance(step, float):
                ticket.wake.wait(step)
            if ticket.cancelled is not None:
                self._finish(request, send, emitted, ticket.cancelled)
                return
            if isinstance(step, Exception):
                self._finish(request, send, emitted, FinishReason.ERROR, str(step))
                return
            if isinstance(step, tuple):
                tokens, reason = self._cut(request, step, emitted)
                emitted += len(tokens)
                send(Emitted(request.id, tokens, self._logprobs(request, tokens)))
                if reason is not None:
                    self._finish(request, send, emitted, reason)
                    return
        self._finish(request, send, emitted, FinishReason.LENGTH)

    @staticmethod
    def _cut(
        request: Request, tokens: tuple[int, ...], emitted: int
    ) -> tuple[tuple[int, ...], FinishReason | None]:
        for place, token in enumerate(tokens):
            if token in request.stop:
                return tokens[: place + 1], FinishReason.STOP
            if emitted + place + 1 == request.max_new:
                return tokens[: place + 1], FinishReason.LENGTH
        return tokens, None

    @staticmethod
    def _logprobs(request: Request, tokens: tuple[int, ...]) -> tuple[TokenLogprob, ...]:
        count = request.sampling.logprobs
        if count is None:
            return ()
        return tuple(
            TokenLogprob(token, -0.5, tuple((token + i, -0.5 - i) for i in range(count)))
            for token in tokens
        )

    def _finish(
        self,
        request: Request,
        send: Callable[[Event], None],
        emitted: int,
        reason: FinishReason,
        error: str | None = None,
    ) -> None:
        usage = Usage(len(request.prompt), 3, emitted, steps=emitted, drafts=self.drafts)
        event = Finished(request.id, reason, usage, error)
        self.ended.append(event)
        send(event)

    def stats(self) -> dict[str, int]:
        return {"steps": 7, "running": 0, "waiting": 0}

    def overview(self) -> Future[EngineOverview]:
        """Of its counters, and of the ``views`` that a test gives it."""
        self.looks += 1
        found: Future[EngineOverview] = Future()
        found.set_result(EngineOverview(self.stats(), self.views))
        return found

    def wait_until_ended(self, count: int, seconds: float = 5.0) -> list[Finished]:
        deadline = time.monotonic() + seconds
        while len(self.ended) < count:
            assert time.monotonic() < deadline, f"only {len(self.ended)} of {count} ended"
            time.sleep(0.005)
        return self.ended


@pytest.fixture(scope="session")
def template() -> str:
    return TEMPLATE


@pytest.fixture(scope="session")
def text(cases):
    """Tokenizer and chat format of the reference case."""
    settings = load_settings()
    tokenizer, _, chat_format = open_text(
        cases / "qwen35.gguf", settings, Registry.discover(settings)
    )
    return tokenizer, chat_format


@pytest.fixture
def make_engine(text):
    """``make_engine("text", ...)``: an engine that answers with these texts, one for each step.

    A step may also be tokens, seconds of silence, or an exception. The end-of-turn token follows
    the last step unless ``stops`` is false.
    """
    tokenizer, _ = text

    def steps(script: tuple[Any, ...], stops: bool) -> list[Step]:
        made = [
            tuple(tokenizer.encode(part, add_bos=False)) if isinstance(part, str) else part
            for part in script
        ]
        return [*made, (tokenizer.eos,)] if stops else made

    def make(*script: Any, stops: bool = True, **fields: Any) -> FakeEngine:
        return FakeEngine(lambda request: steps(script, stops), **fields)

    return make


@pytest.fixture
def make_runtime(text):
    """A runtime around an engine; ``chat`` off = a model without a template."""
    tokenizer, chat_format = text

    def make(
        engine: FakeEngine,
        *,
        chat: bool = True,
        context: int = 256,
        card: ModelCard | None = None,
        chat_format: ChatFormat = chat_format,
        drafters: tuple[str, ...] = (),
        host_bytes: int = 0,
        disk_bytes: int = 0,
    ) -> SimpleNamespace:
        template = ChatTemplate(TEMPLATE, tokenizer, chat_format) if chat else None
        info = ModelInfo(
            "tiny",
            "fam",
            "arch",
            StatePlan((Paged((Section("k", 1, 8),)),)),
            tokenizer.vocab_size,
            context,
        )
        return SimpleNamespace(
            name="tiny",
            engine=engine,
            tokenizer=tokenizer,
            chat=template,
            chat_format=chat_format,
            card=card,
            info=info,
            facts=EngineFacts("cpu (toy)", 8, drafters, 4, host_bytes, disk_bytes),
        )

    return make


@pytest.fixture
def make_service(make_runtime):
    def make(
        engine: FakeEngine, *, slots: int = 8, runtime: dict[str, Any] | None = None, **options: Any
    ) -> Service:
        options = {"model_name": "tiny", "headers_after": 0.2, **options}
        return Service(make_runtime(engine, **(runtime or {})), ServerOptions(**options), slots)

    return make


@pytest.fixture
def make_client(make_service):
    """A client of an application in this process."""

    def make(engine: FakeEngine, **options: Any) -> TestClient:
        app = create_app(make_service(engine, **options))
        return TestClient(app, raise_server_exceptions=False)

    return make


@dataclass
class Running:
    """A server on a port of its own, in a thread."""

    url: str
    service: Service
    server: GracefulServer
    thread: threading.Thread

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()


@pytest.fixture
def run_server() -> Iterator[Callable[[Service], Running]]:
    running: list[Running] = []

    def run(service: Service) -> Running:
        sock = bind("127.0.0.1", 0)
        server = GracefulServer(service)
        thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        running.append(Running(url, service, server, thread))
        deadline = time.monotonic() + 20
        while not server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return running[-1]

    yield run
    for item in running:
        item.stop()


class StrictStream:
    """A strict client of server-sent events: they must be well formed and end with [DONE]."""

    def __init__(self, body: str):
        assert body.endswith("data: [DONE]\n\n"), body[-200:]
        blocks = body.split("\n\n")[:-2]
        self.comments = [block for block in blocks if block.startswith(":")]
        data = [block for block in blocks if not block.startswith(":")]
        assert all(block.startswith("data: ") and "\n" not in block for block in data)
        self.events: list[dict[str, Any]] = [json.loads(block[6:]) for block in data]

    def check_chat(self, choices: int = 1, usage: bool = False) -> list[dict[str, Any]]:
        """Check the order of chunks. Returns the text of each choice by field, with its finish
        reason."""
        chunks = list(self.events)
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
        if usage:
            last = chunks.pop()
            assert last["choices"] == []
            assert last["usage"]["total_tokens"] > 0
            assert all(chunk["usage"] is None for chunk in chunks)
        else:
            assert all("usage" not in chunk for chunk in chunks)
        found: list[dict[str, Any]] = [{} for _ in range(choices)]
        for chunk in chunks:
            (choice,) = chunk["choices"]
            self._follow(found[choice["index"]], choice)
        assert all("finish" in choice for choice in found)
        return found

    @staticmethod
    def _follow(seen: dict[str, Any], choice: dict[str, Any]) -> None:
        delta = choice["delta"]
        assert "finish" not in seen, "a chunk after the last one"
        if not seen:
            assert delta == {"role": "assistant", "content": None}
            seen["content"] = ""
            return
        assert "role" not in delta
        if choice["finish_reason"] is not None:
            assert delta == {}
            seen["finish"] = choice["finish_reason"]
            return
        ((name, text),) = delta.items()
        if name == "tool_calls":
            (call,) = text
            _follow_call(seen.setdefault(name, []), call)
            return
        assert text, "an empty delta"
        seen[name] = seen.get(name, "") + text


def _follow_call(calls: list[dict[str, Any]], delta: dict[str, Any]) -> None:
    """Check that id, type and name come once, and that a call ends before the next one begins."""
    index, function = delta.pop("index"), delta["function"]
    if index == len(calls):
        assert function["arguments"] == ""
        assert delta["id"].startswith("call_")
        calls.append(delta)
        return
    assert index == len(calls) - 1
    assert delta == {"function": {"arguments": function["arguments"]}}
    assert function["arguments"]
    calls[index]["function"]["arguments"] += function["arguments"]


@pytest.fixture
def read_stream() -> Callable[[httpx.Response], StrictStream]:
    def read(response: httpx.Response) -> StrictStream:
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-cache"
        return StrictStream(response.text)

    return read


@pytest.fixture
def user():
    """A chat request that asks one thing; further fields as given."""

    def body(**fields: Any) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": "Hi"}], **fields}

    return body


@pytest.fixture
def broken() -> EngineError:
    return EngineError("step 3 failed: RuntimeError: out of order")
