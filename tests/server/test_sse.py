"""The event stream: however it ends, its source is closed."""

from __future__ import annotations

import asyncio

import pytest

from kinfolk.server.sse import EventStream, event


class Channel:
    """The client's end: collects what is sent; leaves or stalls when told to."""

    def __init__(self, leave_after: int | None = None, stall_after: int | None = None):
        self.sent: list[dict] = []
        self.leave_after = leave_after
        self.stall_after = stall_after
        self.left = asyncio.Event()

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        if self.stall_after is not None and len(self.sent) >= self.stall_after:
            await asyncio.sleep(60)
        self.sent.append(message)
        if self.leave_after is not None and len(self.sent) >= self.leave_after:
            self.left.set()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


class Source:
    """Yields numbered chunks; notes how it was closed."""

    def __init__(self, chunks: int, pause: float = 0.0, error: Exception | None = None):
        self.chunks, self.pause, self.error = chunks, pause, error
        self.closed = 0
        self.finished = False

    async def stream(self):
        try:
            for number in range(self.chunks):
                await asyncio.sleep(self.pause)
                yield event(number)
            if self.error is not None:
                raise self.error
        finally:
            self.finished = True

    def close(self):
        self.closed += 1


def play(source: Source, channel_args=None, **options):
    async def run():
        channel = Channel(**(channel_args or {}))
        stream = EventStream(source.stream(), source.close, **options)
        async with asyncio.timeout(10):
            await stream({"type": "http"}, channel.receive, channel.send)
        return channel

    return asyncio.run(run())


def test_everything_is_sent_in_order_and_the_source_is_closed_once():
    source = Source(3)
    channel = play(source)
    assert channel.body == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
    assert channel.sent[-1]["more_body"] is False
    assert (source.closed, source.finished) == (1, True)


def test_silence_is_filled_with_comments_that_lose_no_event():
    source = Source(2, pause=0.25)
    body = play(source, ping_after=0.05).body
    assert body.count(b": ping") >= 6
    assert body.replace(b": ping\n\n", b"") == b"data: 0\n\ndata: 1\n\n"


def test_a_client_that_leaves_closes_the_source():
    source = Source(1000, pause=0.01)
    channel = play(source, {"leave_after": 3})
    assert len(channel.sent) < 20
    assert (source.closed, source.finished) == (1, True)


def test_a_client_that_leaves_before_anything_was_sent_closes_the_source():
    source = Source(1, pause=60)

    async def run():
        channel = Channel()
        channel.left.set()
        stream = EventStream(source.stream(), source.close)
        async with asyncio.timeout(10):
            await stream({"type": "http"}, channel.receive, channel.send)

    asyncio.run(run())
    assert source.closed == 1


def test_a_reader_that_stalls_is_given_up():
    source = Source(1000)
    play(source, {"stall_after": 3}, write_timeout=0.1)
    assert (source.closed, source.finished) == (1, True)


def test_a_failing_source_is_closed_and_its_failure_not_hidden():
    source = Source(1, error=ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        play(source)
    assert (source.closed, source.finished) == (1, True)


def test_a_cancelled_response_closes_the_source():
    source = Source(1, pause=60)

    async def run():
        channel = Channel()
        stream = EventStream(source.stream(), source.close)
        task = asyncio.ensure_future(stream({"type": "http"}, channel.receive, channel.send))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert (source.closed, source.finished) == (1, True)


def test_text_is_sent_as_it_is_and_surrogates_do_no_harm():
    assert event({"a": "日本\n"}) == 'data: {"a":"日本\\n"}\n\n'.encode()
    assert event("x\ud800") == b'data: "x?"\n\n'
