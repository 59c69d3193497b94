"""The status of a server over HTTP: its schema, its events, its key, and what is never in it."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any, Literal

import httpx
import pytest
from pydantic import BaseModel, ConfigDict, TypeAdapter

from kinfolk.engine.inbox import Inbox
from kinfolk.sched.request import Status
from kinfolk.sched.view import SequenceView
from kinfolk.server import status_feed


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Model(Strict):
    name: str
    family: str
    architecture: str
    context: int
    device: str


class Server(Strict):
    started: int
    draining: bool
    in_flight: int
    capacity: int
    answers: dict[str, int]
    generated_tokens: int


class Engine(Strict):
    steps: int
    replays: int
    eager_steps: int
    prefill_rows: int
    preemptions: int
    parked: bool


class Waiting(Strict):
    id: str
    state: Literal["waiting", "preempted", "prefill", "decode", "held"]
    priority: int
    prompt: int
    reused: int
    position: int
    generated: int
    left: int
    tokens_per_second: float | None
    accept_length: float | None


class Running(Waiting):
    slot: int


class Copies(Strict):
    count: int
    bytes: int | None


class Place(Strict):
    place: Literal["device", "host", "disk"]
    entries: int
    most_entries: int | None
    bytes: int
    most_bytes: int | None
    hits: int
    tokens: int
    written: Copies | None
    read: Copies | None


class Cache(Strict):
    lookups: int
    hits: int
    tokens: int
    demotions: int
    places: list[Place]
    drops: dict[str, int]
    disk_drops: dict[str, int]


class Kvflash(Strict):
    budget_tokens: int
    chunk_tokens: int
    tau: int
    scorers: int
    sequences: int
    resident_chunks: int
    away_chunks: int
    evictions: int
    recalls: int
    selections: int
    scorer_failures: int


class Speculation(Strict):
    drafters: list[str]
    steps: int
    drafted: int
    accepted: int
    accept_length: float | None
    accept_rate: float | None
    failures: int


class Finished(Strict):
    ended: float
    reason: Literal["stop", "length", "cancelled", "error"]
    prompt: int
    reused: int
    reused_from: Literal["device", "host", "disk"] | None
    generated: int
    first_token_seconds: float
    tokens_per_second: float | None
    accept_length: float | None
    exact: bool


class Speeds(Strict):
    bin_seconds: int
    generated: list[float | None]
    prompt: list[float | None]


class StatusBody(Strict):
    time: float
    version: str
    model: Model
    server: Server
    engine: Engine
    slots: int
    running: list[Running]
    waiting: list[Waiting]
    waiting_requests: int
    cache: Cache
    kvflash: Kvflash | None
    speculation: Speculation | None
    compression: dict[str, int] | None
    recent: list[Finished]
    speeds: Speeds


def checked(body: Any) -> StatusBody:
    return TypeAdapter(StatusBody).validate_json(json.dumps(body))


def view(name: str, **fields: Any) -> SequenceView:
    known: dict[str, Any] = {
        "request_id": name,
        "status": Status.DECODE,
        "slot": 1,
        "epoch": 1,
        "prompt": 20,
        "position": 24,
        "pending": 987654,
        "emitted": 5,
        "remaining": 95,
        "left": 95,
        "quantum": None,
        "priority": 0,
        "reused": 16,
        "accept_length": 0.0,
    }
    return SequenceView(**{**known, **fields})


SECRET = "zanzibar"


def with_secrets(engine):
    """An engine whose counters are those of paging, and which runs and holds back requests."""
    engine.views = (
        view("b", slot=3, accept_length=2.345),
        view("c", slot=None, status=Status.WAITING, priority=2, position=0, emitted=0, reused=0),
        view("a", slot=1, status=Status.PREFILL, position=7, emitted=0),
        view("d", slot=None, status=Status.PREEMPTED, priority=-1),
    )
    counts = {"kvflash_tokens": 1024, "kvflash_away_chunks": 3, "prefix_hits_disk": 2, "steps": 5}
    engine.stats = lambda: counts | {"prefix_drops_room": 4, "disk_drops_full": 1}
    return engine


def test_the_json_has_the_documented_members_and_no_others(make_client, make_engine, user):
    engine = with_secrets(make_engine(SECRET))
    runtime = {"drafters": ("ngram", "mtp"), "host_bytes": 2**30, "disk_bytes": 2**31}
    client = make_client(engine, runtime=runtime)
    usage = client.post("/v1/chat/completions", json=user()).json()["usage"]
    found = checked(client.get("/status/json").json())
    assert (found.model.name, found.model.device, found.slots) == ("tiny", "cpu (toy)", 8)
    assert [(each.slot, each.id, each.state) for each in found.running] == [
        (1, "a", "prefill"),
        (3, "b", "decode"),
    ]
    assert [each.accept_length for each in found.running] == [None, 2.35]
    assert [each.id for each in found.waiting] == ["d", "c"], "in the order in which they run"
    assert [each.place for each in found.cache.places] == ["device", "host", "disk"]
    assert [each.most_bytes for each in found.cache.places] == [None, 2**30, 2**31]
    assert found.cache.places[2].hits == 2
    assert (found.cache.drops, found.cache.disk_drops) == ({"room": 4}, {"full": 1})
    assert found.kvflash is not None
    assert (found.kvflash.budget_tokens, found.kvflash.away_chunks) == (1024, 3)
    assert found.speculation is not None
    assert found.speculation.drafters == ["ngram", "mtp"]
    assert (found.speculation.steps, found.speculation.accept_length) == (2, 4.0)
    (answer,) = found.recent
    assert (answer.reason, answer.generated, answer.reused) == (
        "stop",
        usage["completion_tokens"],
        3,
    )
    assert found.server.generated_tokens == usage["completion_tokens"]


def test_what_is_off_is_null(make_client, make_engine):
    found = checked(make_client(make_engine("x")).get("/status/json").json())
    assert (found.kvflash, found.speculation, found.compression) == (None, None, None)
    assert [each.place for each in found.cache.places] == ["device", "host"]


def test_neither_prompts_nor_answers_nor_tokens_are_in_it(make_client, make_engine):
    client = make_client(with_secrets(make_engine(SECRET)))
    body = {"messages": [{"role": "user", "content": SECRET[::-1]}], "user": "somebody"}
    answer = client.post("/v1/chat/completions", json=body).json()
    assert SECRET in answer["choices"][0]["message"]["content"]
    text = client.get("/status/json").text
    for hidden in (SECRET, SECRET[::-1], "somebody", "987654"):
        assert hidden not in text


def test_many_waiting_requests_are_counted_and_not_all_listed(make_client, make_engine):
    engine = make_engine("x")
    engine.views = tuple(view(f"r{n}", slot=None, status=Status.WAITING) for n in range(250))
    found = checked(make_client(engine).get("/status/json").json())
    assert (len(found.waiting), found.waiting_requests) == (100, 250)


# -- the key --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/status/json", "/status/events"])
@pytest.mark.parametrize(
    ("headers", "status"), [({}, 401), ({"Authorization": "Bearer wrong"}, 401)]
)
def test_numbers_need_the_key(make_client, make_engine, path, headers, status):
    client = make_client(make_engine("x"), api_keys=("k",))
    assert client.get(path, headers=headers).status_code == status


def test_with_the_key_the_numbers_come(make_client, make_engine):
    client = make_client(make_engine("x"), api_keys=("k",))
    found = client.get("/status/json", headers={"Authorization": "Bearer k"})
    assert checked(found.json()).model.name == "tiny"


# -- events ---------------------------------------------------------------------------------------


class Reader:
    """Events of a server, read in a thread."""

    def __init__(self, url: str, **options: Any) -> None:
        self.events: list[StatusBody] = []
        self.more = threading.Condition()
        self.ended = threading.Event()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._read, args=(url, options), daemon=True)
        self.thread.start()

    def _read(self, url: str, options: Any) -> None:
        with httpx.stream("GET", url + "/status/events", timeout=30, **options) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            for line in response.iter_lines():
                if line.startswith("data: "):
                    with self.more:
                        self.events.append(checked(json.loads(line.removeprefix("data: "))))
                        self.more.notify()
                else:
                    assert line in ("", ": ping")
                if self.stop.is_set():
                    break
        self.ended.set()

    def until(self, holds: Any, seconds: float = 10.0) -> StatusBody:
        with self.more:
            assert self.more.wait_for(lambda: self.events and holds(self.events[-1]), seconds)
            return self.events[-1]


@pytest.fixture
def quick(monkeypatch):
    """The engine is looked at often, and bins of speeds do not pass."""
    monkeypatch.setattr(status_feed, "PERIOD_SECONDS", 0.02)
    monkeypatch.setattr("kinfolk.server.speeds.BIN_SECONDS", 10**6)


@pytest.fixture
def served(quick, make_service, make_engine, run_server):
    def start(**options: Any) -> Any:
        engine = make_engine("x")
        return engine, run_server(make_service(engine, **options))

    return start


def test_an_event_comes_at_once_and_then_with_each_change(served):
    engine, running = served()
    reader = Reader(running.url)
    reader.until(lambda status: status.running == [])
    engine.views = (view("a", emitted=1),)
    reader.until(lambda status: [each.id for each in status.running] == ["a"])
    engine.views = ()
    reader.until(lambda status: status.running == [])
    reader.stop.set()


def test_nothing_is_sent_while_nothing_changes(served):
    engine, running = served()
    reader = Reader(running.url)
    reader.until(lambda status: True)
    looks = engine.looks
    deadline = time.monotonic() + 10
    while engine.looks < looks + 20:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    assert len(reader.events) == 1


def test_the_engine_is_left_alone_when_nobody_listens(served):
    engine, running = served()
    assert engine.looks == 0, "nobody has listened yet"
    with httpx.stream("GET", running.url + "/status/events", timeout=30) as response:
        lines = response.iter_lines()  # dropping this would close the connection
        assert next(lines).startswith("data: ")
        assert running.server.feed.listeners == 1
    deadline = time.monotonic() + 10
    while running.server.feed.listeners:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    looks = engine.looks
    time.sleep(0.2)
    assert engine.looks == looks


def test_several_listeners_cost_one_look(served):
    engine, running = served()
    readers = [Reader(running.url) for _ in range(5)]
    for reader in readers:
        reader.until(lambda status: True)
    engine.views = (view("a"),)
    for reader in readers:
        reader.until(lambda status: len(status.running) == 1)
    engine.overview = None  # a second way to look would fail from here on
    for reader in readers:
        assert reader.ended.wait(10)


def test_more_listeners_than_a_server_has_places_for_are_refused(served, monkeypatch):
    monkeypatch.setattr(status_feed, "MOST_LISTENERS", 1)
    _, running = served()
    Reader(running.url).until(lambda status: True)
    refused = httpx.get(running.url + "/status/events")
    assert refused.status_code == 503
    assert "watch this server already" in refused.json()["error"]["message"]


def test_a_listener_that_reads_nothing_is_dropped_and_others_go_on(served, run_server, monkeypatch):
    """It gets what the kernel keeps for it; then a write takes too long."""
    monkeypatch.setattr("kinfolk.server.status_page.WRITE_SECONDS", 0.3)
    engine, running = served()
    host, port = running.url.removeprefix("http://").split(":")
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect((host, int(port)))
        sock.sendall(b"GET /status/events HTTP/1.1\r\nHost: x\r\n\r\n")
        reader = Reader(running.url)
        reader.until(lambda status: True)
        deadline, turn = time.monotonic() + 60, 0
        while running.server.feed.listeners != 1 or turn < 3:
            assert time.monotonic() < deadline
            turn += 1
            engine.views = tuple(
                view(f"{turn}-{n}", slot=None, status=Status.WAITING) for n in range(100)
            )
            time.sleep(0.02)
        engine.views = ()
        reader.until(lambda status: status.waiting == [])


def test_a_server_that_ends_does_not_wait_for_those_who_listen(served):
    _, running = served(grace=60.0)
    reader = Reader(running.url)
    reader.until(lambda status: True)
    running.stop()
    assert reader.ended.wait(10)
    with pytest.raises(httpx.TransportError):
        httpx.get(running.url + "/status/json")


def test_a_stopped_engine_is_an_error_with_its_reason(make_client, make_engine):
    engine = make_engine("x")
    inbox = Inbox()
    inbox.close()
    engine.overview = lambda: inbox.look(lambda: None)
    response = make_client(engine).get("/status/json")
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "the engine has stopped"
