"""The client of ``kinfolk bench --http``: streams of a server, with the time of every event.

While answers arrive, the client only notes what arrived when. It reads the events afterwards, so
that it does not slow the streams that it measures.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import h11

from kinfolk.errors import EngineError, SettingsError, shown

_SILENCE: Final = 300.0
"""Most seconds in which a stream may send nothing."""


@dataclass(frozen=True, slots=True)
class Address:
    """A server, and the key that it asks for."""

    host: str
    port: int
    key: str | None = None

    @classmethod
    def parse(cls, url: str, key: str | None = None) -> Address:
        """``http://HOST[:PORT]``, also with the ``/v1`` that clients put behind it. Raises
        :class:`SettingsError`."""
        try:
            parts = urlsplit(url)
            port = parts.port or 80
        except ValueError as error:
            raise SettingsError(f"--url {url}: {error}") from None
        if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") not in ("", "v1"):
            raise SettingsError(f"--url must be like http://127.0.0.1:8080, got {shown(url)}")
        return cls(parts.hostname, port, key)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """One stream: seconds from sending the request to each event with text, the number of its
    tokens as the server counts them, and the reason if it failed."""

    times: tuple[float, ...]
    tokens: int
    error: str | None = None

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Round:
    """Streams that were sent together: their answers, and seconds until the last one had ended."""

    answers: tuple[StreamTimes, ...]
    seconds: float


async def play(
    address: Address, bodies: Sequence[dict[str, Any]], path: str = "/v1/completions"
) -> Round:
    """Send all requests at once, each on a connection of its own, and wait for their answers.

    A stream that fails is an :class:`StreamTimes` with an error. Raises :class:`EngineError` if the
    server cannot be reached.
    """
    loop = asyncio.get_running_loop()
    receivers = []
    try:
        for _ in bodies:
            _, receiver = await loop.create_connection(_Receiver, address.host, address.port)
            receivers.append(receiver)
    except OSError as error:
        for receiver in receivers:
            receiver.close()
        raise EngineError(f"cannot connect to {address}: {error.strerror or error}") from None
    requests = [_request(address, "POST", path, body) for body in bodies]
    started = time.perf_counter()
    try:
        for receiver, request in zip(receivers, requests, strict=True):
            receiver.send(request)
        await asyncio.gather(*(receiver.ended(_SILENCE) for receiver in receivers))
        seconds = time.perf_counter() - started
    finally:
        for receiver in receivers:
            receiver.close()
    return Round(tuple(receiver.answer() for receiver in receivers), seconds)


async def fetch_json(address: Address, path: str) -> Any:
    """The JSON at ``path``. Raises :class:`EngineError`."""
    loop = asyncio.get_running_loop()
    try:
        _, receiver = await loop.create_connection(_Receiver, address.host, address.port)
    except OSError as error:
        raise EngineError(f"cannot connect to {address}: {error.strerror or error}") from None
    try:
        receiver.send(_request(address, "GET", path, None))
        await receiver.ended(_SILENCE)
    finally:
        receiver.close()
    status, parts, failure = receiver.body()
    if failure is None and status != 200:
        failure = _message(b"".join(data for _, data in parts), status)
    if failure is not None:
        raise EngineError(f"{address}{path}: {failure}")
    try:
        return json.loads(b"".join(data for _, data in parts))
    except ValueError:
        raise EngineError(f"{address}{path} did not answer with JSON") from None


def _request(address: Address, method: str, path: str, body: dict[str, Any] | None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {address.host}:{address.port}",
        f"Content-Length: {len(data)}",
        "Content-Type: application/json",
        "Connection: close",
        *([f"Authorization: Bearer {address.key}"] if address.key else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + data


class _Receiver(asyncio.Protocol):
    """A connection for one request; notes each piece that arrives and when."""

    def __init__(self) -> None:
        self._pieces: list[tuple[float, bytes]] = []
        self._end = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._sent = self._last = time.perf_counter()
        self._failure: str | None = None

    # -- called by the event loop -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._last = time.perf_counter()
        self._pieces.append((self._last, data))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._failure = f"the connection broke: {exc}"
        if not self._end.done():
            self._end.set_result(None)

    # -- called by the client -----------------------------------------------------------------

    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self._sent = self._last = time.perf_counter()
        self._transport.write(request)

    async def ended(self, silence: float) -> None:
        """Wait until the server has closed the connection, or was silent for too long."""
        while not self._end.done():
            await asyncio.wait({self._end}, timeout=silence)
            if not self._end.done() and time.perf_counter() - self._last >= silence:
                self._failure = f"nothing arrived for {silence:.0f} s"
                return

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def body(self) -> tuple[int, list[tuple[float, bytes]], str | None]:
        """Status, pieces of the body with the seconds since the request was sent, and an error."""
        client, status = h11.Connection(h11.CLIENT), 0
        client.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
        client.send(h11.EndOfMessage())
        parts: list[tuple[float, bytes]] = []
        cut = "the connection was closed before the answer's end"
        for now, data in [*self._pieces, (self._last, b"")]:  # empty: the end of the connection
            try:
                client.receive_data(data)
                while (event := client.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                    if isinstance(event, h11.Response):
                        status = event.status_code
                    elif isinstance(event, h11.Data):
                        parts.append((now - self._sent, bytes(event.data)))
                    elif isinstance(event, h11.EndOfMessage):
                        return status, parts, None
            except h11.RemoteProtocolError as error:
                wrong = f"the answer is not valid HTTP: {error}" if data else cut
                return status, parts, self._failure or wrong
        return status, parts, self._failure or cut

    def answer(self) -> StreamTimes:
        """The stream of a completion."""
        status, parts, error = self.body()
        if status != 200:
            return StreamTimes(
                (), 0, error or _message(b"".join(data for _, data in parts), status)
            )
        times, tokens, finished, rest = [], 0, False, b""
        for seconds, data in parts:
            *events, rest = (rest + data).split(b"\n\n")
            for event in events:
                if not event.startswith(b"data: "):
                    continue  # a comment keeps the connection alive
                if event == b"data: [DONE]":
                    finished = True
                    continue
                chunk = json.loads(event[len(b"data: ") :])
                if "error" in chunk:
                    error = error or str(chunk["error"].get("message", chunk["error"]))
                elif any(choice.get("text") for choice in chunk["choices"]):
                    times.append(seconds)
                if chunk.get("usage"):
                    tokens = int(chunk["usage"]["completion_tokens"])
        if error is None and not finished:
            error = "the stream ended without [DONE]"
        return StreamTimes(tuple(times), tokens, error)


def _message(body: bytes, status: int) -> str:
    """The message of an error response."""
    try:
        return f"{status}: {json.loads(body)['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"status {status}"
