"""``POST /v1/chat/completions``."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from kinfolk.engine.answer import AnswerPart, CallPiece, Ended, SpelledToken, TextLogprob, TextPiece
from kinfolk.engine.compression import ChatSource
from kinfolk.engine.generation import Generation
from kinfolk.engine.prompt import Prompt, chat_prompt
from kinfolk.server.body import read_body
from kinfolk.server.bridge import Batch
from kinfolk.server.compression import compressed_prompt
from kinfolk.server.models import served_name
from kinfolk.server.request_log import CLIENT_GONE
from kinfolk.server.responses import Launched, collect, json_response, launched, stream
from kinfolk.server.schema import ChatBody
from kinfolk.server.service import Service
from kinfolk.server.speculative import Speculative
from kinfolk.server.tools import ToolCallEncoder
from kinfolk.server.usage import timings_of, usage_of
from kinfolk.version import __version__


def chat_router(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions")
    @router.post("/chat/completions")
    async def chat_completions(request: Request) -> Response:
        body = await read_body(request, ChatBody)
        body.refuse_unsupported()
        name = served_name(service, body.model)
        options = body.options(service.options.max_choices)
        service.check_count(1, options.choices)
        # In a thread: rendering and tokenising a long conversation would stall every stream.
        prompt = await run_in_threadpool(
            chat_prompt,
            service.runtime,
            body.messages,
            body.template_options(),
            body.callable_tools(),
            single_call=body.parallel_tool_calls is False,
        )
        source = ChatSource(body.messages, body.template_options(), bool(body.tools))

        async def launch() -> Launched:
            read = await compressed_prompt(service, prompt, source, body.prefill_compression)
            generation = Generation(service.runtime, read, options)
            return Launched(await service.launch(request, [generation]), [read])

        if body.streams:
            encoder = partial(
                ChatChunks, name, options.choices, body.include_usage, body.speculative
            )
            return await stream(request, service, launch(), encoder)
        found = await launched(request, launch())
        answer = ChatAnswer(name, options.choices, body.speculative, found.prompts)
        if not await collect(request, service, found.active, answer.take):
            return Response(status_code=CLIENT_GONE)
        return json_response(answer.body())

    return router


def _head(model: str, kind: str) -> dict[str, Any]:
    """The fields that an answer and each of its chunks share."""
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": f"kinfolk-{__version__}",
    }


class ChatChunks:
    """Encodes pieces as chunks: for each choice a role, text and tool calls, a finish reason."""

    def __init__(
        self,
        model: str,
        choices: int,
        include_usage: bool,
        speculative: Speculative | None,
        prompts: Sequence[Prompt],
    ):
        self._prompts = prompts
        self._head = _head(model, "chat.completion.chunk")
        self._speculative = speculative
        self._include_usage = include_usage
        self._choices = choices
        self._begun: set[int] = set()
        self._calls: defaultdict[int, ToolCallEncoder] = defaultdict(ToolCallEncoder)
        self._ends: dict[int, Ended] = {}

    def chunks(self, batch: Batch) -> list[dict[str, Any]]:
        chunks = []
        for index, piece in batch:
            if index not in self._begun:
                self._begun.add(index)
                chunks.append(self._chunk(index, {"role": "assistant", "content": None}))
            if isinstance(piece, TextPiece):
                chunks.append(self._chunk(index, _delta(piece), logprobs=piece))
            elif isinstance(piece, CallPiece):
                if delta := self._calls[index].take(piece.event):
                    chunks.append(self._chunk(index, {"tool_calls": [delta]}))
            else:
                self._ends[index] = piece
                finish = self._calls[index].finish_reason(piece)
                chunks.append(self._chunk(index, {}, finish=finish))
        return chunks

    def usage(self) -> dict[str, Any] | None:
        """The final chunk with token counts, ``None`` unless ``include_usage``."""
        if not self._include_usage:
            return None
        ends = [self._ends[index] for index in sorted(self._ends)]
        return {
            **self._head,
            "choices": [],
            "usage": usage_of(ends, self._choices, self._speculative, self._prompts),
            "timings": timings_of(ends, self._choices),
        }

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        finish: str | None = None,
        logprobs: TextPiece | None = None,
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "delta": delta, "finish_reason": finish}
        if logprobs is not None and logprobs.logprobs:
            choice["logprobs"] = {_field(logprobs): [_entry(e) for e in logprobs.logprobs]}
        chunk = {**self._head, "choices": [choice]}
        if self._include_usage:
            chunk["usage"] = None
        return chunk


class ChatAnswer:
    """Encodes pieces as one response body."""

    def __init__(
        self,
        model: str,
        choices: int,
        speculative: Speculative | None,
        prompts: Sequence[Prompt],
    ):
        self._prompts = prompts
        self._head = _head(model, "chat.completion")
        self._speculative = speculative
        self._pieces: list[list[TextPiece]] = [[] for _ in range(choices)]
        self._calls = [ToolCallEncoder() for _ in range(choices)]
        self._ends: dict[int, Ended] = {}

    def take(self, index: int, piece: AnswerPart) -> None:
        if isinstance(piece, TextPiece):
            self._pieces[index].append(piece)
        elif isinstance(piece, CallPiece):
            self._calls[index].take(piece.event)
        else:
            self._ends[index] = piece

    def body(self) -> dict[str, Any]:
        choices = len(self._pieces)
        ends = [self._ends[index] for index in range(choices)]
        return {
            **self._head,
            "choices": [self._choice(index) for index in range(choices)],
            "usage": usage_of(ends, choices, self._speculative, self._prompts),
            "timings": timings_of(ends, choices),
        }

    def _choice(self, index: int) -> dict[str, Any]:
        pieces, end = self._pieces[index], self._ends[index]
        calls = self._calls[index].complete()
        # With calls and no text, clients expect null.
        content = _text(pieces, "content") or (None if calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if reasoning := _text(pieces, "reasoning"):
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        logprobs: dict[str, Any] = {}
        for piece in pieces:
            if piece.logprobs:
                logprobs.setdefault(_field(piece), []).extend(map(_entry, piece.logprobs))
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs or None,
            "finish_reason": self._calls[index].finish_reason(end),
        }


def _text(pieces: list[TextPiece], kind: str) -> str:
    return "".join(piece.text for piece in pieces if piece.kind == kind)


def _field(piece: TextPiece) -> str:
    return "content" if piece.kind == "content" else "reasoning_content"


def _delta(piece: TextPiece) -> dict[str, Any]:
    return {_field(piece): piece.text}


def _entry(logprob: TextLogprob) -> dict[str, Any]:
    return {
        **_spelled(logprob.chosen),
        "top_logprobs": [_spelled(token) for token in logprob.top],
    }


def _spelled(token: SpelledToken) -> dict[str, Any]:
    return {
        "id": token.token,
        "token": token.text,
        "bytes": list(token.bytes),
        "logprob": token.logprob,
    }
