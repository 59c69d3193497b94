"""Compression of prompts in the API: the field of requests, the wait for scores, and ``usage``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from starlette.concurrency import run_in_threadpool

from kinfolk.compress.rules import MODES, CompressionMode
from kinfolk.engine.prompt import Prompt
from kinfolk.server.errors import unsupported

if TYPE_CHECKING:
    from kinfolk.engine.compressed import Compression
    from kinfolk.engine.compression import CompressionJob, Compressor, Source
    from kinfolk.server.service import Service

PREFILL_COMPRESSION: Final = f"one of {', '.join(MODES)}"


async def compressed_prompt(
    service: Service,
    prompt: Prompt,
    source: Source,
    mode: CompressionMode | None,
) -> Prompt:
    """The prompt as it is to be read: compressed, or in full if the rules say so or if compression
    fails. Cancelling it gives the scoring up. Raises :class:`ApiError` for a mode that this server
    cannot do, or if the queue is full."""
    compressor = service.compressor
    if compressor is None:
        if mode in (None, "off"):
            return prompt
        raise unsupported(
            "prefill_compression: this server has no model that scores prompts; start it with "
            "--prefill-compression-drafter, or leave this out",
            "prefill_compression",
        )
    if (mode or compressor.options.mode) == "off":
        return prompt
    job = await run_in_threadpool(compressor.begin, service.runtime, prompt, source, mode)
    if isinstance(job, Prompt):
        return job
    with service.place():
        return await _scored(service, compressor, job)


async def _scored(service: Service, compressor: Compressor, job: CompressionJob) -> Prompt:
    begun: list[Future[Any]] = []  # a cancelled wait for a thread has no result
    try:
        await run_in_threadpool(lambda: begun.append(compressor.score(job)))
        scores = asyncio.wrap_future(begun[0])
        await asyncio.wait({scores})
        error = scores.exception()
        if error is not None:
            return compressor.failed(job, error)
        return await run_in_threadpool(compressor.finish, service.runtime, job, scores.result())
    finally:
        for each in begun:
            each.cancel()


def compression_usage(prompts: Sequence[Prompt]) -> dict[str, Any]:
    """Members of ``usage`` for the prompts of a request; none where nobody asked for it."""
    of_prompts = [each.compression for each in prompts]
    asked = [each for each in of_prompts if each is not None and each.skipped != "off"]
    if not asked:
        return {}
    return {"prefill_compression": _figures(asked)}


def _figures(asked: Sequence[Compression]) -> dict[str, Any]:
    skipped = next((each.skipped for each in asked if each.skipped is not None), None)
    return {
        "original_tokens": sum(each.original for each in asked),
        "compressed_tokens": sum(each.tokens for each in asked),
        "compression_ms": round(1000 * sum(each.seconds for each in asked), 1),
        "skipped": skipped,
    }
