"""``POST /v1/completions``: completion of plain text, without a chat template."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from kinfolk.engine.answer import Ended, TextLogprob, TextPiece
from kinfolk.engine.compression import TextSource, TokenSource
from kinfolk.engine.generation import Generation
from kinfolk.engine.prompt import Prompt, text_prompt, token_prompt
from kinfolk.server.body import read_body
from kinfolk.server.bridge import Batch
from kinfolk.server.compression import compressed_prompt
from kinfolk.server.models import served_name
from kinfolk.server.request_log import CLIENT_GONE
from kinfolk.server.responses import Launched, collect, json_response, launched, stream
from kinfolk.server.schema import CompletionBody
from kinfolk.server.service import Service
from kinfolk.server.speculative import Speculative
from kinfolk.server.usage import timings_of, usage_of
from kinfolk.text.tokenizer import well_formed
from kinfolk.version import __version__

LONG_PROMPT: Final = 4096
"""Ids that take well under a millisecond."""


def completions_router(service: Service) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = await read_body(request, CompletionBody)
        body.refuse_unsupported()
        name = served_name(service, body.model)
        options = body.options(service.options.max_choices)
        service.check_count(len(body.prompts()), options.choices)
        if any(isinstance(prompt, str) or len(prompt) > LONG_PROMPT for prompt in body.prompts()):
            # In a thread: tokenising a long text, or checking many ids, would stall every stream.
            prompts = await run_in_threadpool(_prompts, service, body)
        else:
            prompts = _prompts(service, body)
        echoes = [echo if body.echo else "" for _, echo in prompts]

        async def launch() -> Launched:
            read = [
                await _compressed(service, body, *each, asked)
                for each, asked in zip(prompts, body.prompts(), strict=True)
            ]
            generations = [Generation(service.runtime, prompt, options) for prompt in read]
            return Launched(await service.launch(request, generations), read)

        encoder = partial(
            Completions, name, echoes, options.choices, body.include_usage, body.speculative
        )
        if body.streams:
            return await stream(request, service, launch(), encoder)
        found = await launched(request, launch())
        pieces: Batch = []
        if not await collect(request, service, found.active, lambda *item: pieces.append(item)):
            return Response(status_code=CLIENT_GONE)
        return json_response(encoder(found.prompts).body(pieces))

    return router


def _prompts(service: Service, body: CompletionBody) -> list[tuple[Prompt, str]]:
    """(prompt, text for ``echo``) for each prompt of the body."""
    runtime = service.runtime
    prompts = []
    inputs = body.prompts()
    for number, text_or_ids in enumerate(inputs):
        field = "prompt" if len(inputs) == 1 else f"prompt.{number}"
        if isinstance(text_or_ids, str):
            prompts.append((text_prompt(runtime, text_or_ids, field), text_or_ids))
        else:
            prompt = token_prompt(runtime, text_or_ids, field)
            echo = runtime.tokenizer.decode(text_or_ids) if body.echo else ""
            prompts.append((prompt, echo))
    return prompts


async def _compressed(
    service: Service,
    body: CompletionBody,
    prompt: Prompt,
    text: str,
    asked: str | Sequence[int],
) -> Prompt:
    """The prompt as it is to be read; ids are read as they are."""
    source = TextSource(well_formed(text)) if isinstance(asked, str) else TokenSource()
    return await compressed_prompt(service, prompt, source, body.prefill_compression)


class Completions:
    """Encodes pieces as chunks or as one body. Choice i of prompt p has index ``p * choices +
    i``."""

    def __init__(
        self,
        model: str,
        echoes: list[str],
        choices: int,
        include_usage: bool,
        speculative: Speculative | None,
        prompts: Sequence[Prompt],
    ):
        self._prompts = prompts
        self._head: dict[str, Any] = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"kinfolk-{__version__}",
        }
        self._echoes = echoes
        self._choices = choices
        self._include_usage = include_usage
        self._speculative = speculative
        self._offsets = [len(echo) for echo in echoes for _ in range(choices)]
        self._begun: set[int] = set()
        self._ends: dict[int, Ended] = {}

    def chunks(self, batch: Batch) -> list[dict[str, Any]]:
        chunks = []
        for index, piece in batch:
            echo = "" if index in self._begun else self._echoes[index // self._choices]
            self._begun.add(index)
            if isinstance(piece, Ended):
                self._ends[index] = piece
                if echo:
                    chunks.append(self._chunk(index, echo))
                chunks.append(self._chunk(index, "", finish=piece.reason.value))
            elif isinstance(piece, TextPiece):
                logprobs = self._logprobs(index, piece.logprobs)
                chunks.append(self._chunk(index, echo + piece.text, logprobs=logprobs))
        return chunks

    def usage(self) -> dict[str, Any] | None:
        """The final chunk with token counts, ``None`` unless ``include_usage``."""
        if not self._include_usage:
            return None
        return {**self._head, "choices": [], **self._counts()}

    def body(self, pieces: Batch) -> dict[str, Any]:
        count = len(self._echoes) * self._choices
        texts = [self._echoes[index // self._choices] for index in range(count)]
        logprobs: list[list[TextLogprob]] = [[] for _ in range(count)]
        for index, piece in pieces:
            if isinstance(piece, TextPiece):
                texts[index] += piece.text
                logprobs[index] += piece.logprobs
            elif isinstance(piece, Ended):
                self._ends[index] = piece
        choices = [
            {
                "index": index,
                "text": texts[index],
                "logprobs": self._logprobs(index, tuple(logprobs[index])),
                "finish_reason": self._ends[index].reason.value,
            }
            for index in range(count)
        ]
        return {**self._head, "choices": choices, **self._counts()}

    def _counts(self) -> dict[str, Any]:
        ends = [self._ends[index] for index in sorted(self._ends)]
        return {
            "usage": usage_of(ends, self._choices, self._speculative, self._prompts),
            "timings": timings_of(ends, self._choices),
        }

    def _chunk(
        self,
        index: int,
        text: str,
        *,
        finish: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
        chunk = {**self._head, "choices": [choice]}
        if self._include_usage:
            chunk["usage"] = None
        return chunk

    def _logprobs(self, index: int, entries: tuple[TextLogprob, ...]) -> dict[str, Any] | None:
        """Logprobs as the four parallel lists of the completions API; offsets are in characters.
        The chosen token is among the top ones, too."""
        if not entries:
            return None
        tops = []
        for entry in entries:
            top: dict[str, float] = {}
            for token in (*entry.top, entry.chosen):
                top.setdefault(token.text, token.logprob)  # parts of characters look alike
            tops.append(top)
        return {
            "tokens": [entry.chosen.text for entry in entries],
            "token_logprobs": [entry.chosen.logprob for entry in entries],
            "top_logprobs": tops,
            "text_offset": [self._offsets[index] + entry.start for entry in entries],
        }
