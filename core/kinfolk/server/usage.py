"""Token counts and timings of a response, in the fields of the API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kinfolk.engine.answer import Ended
from kinfolk.engine.prompt import Prompt
from kinfolk.sched.draft_counts import DraftCounts
from kinfolk.server.compression import compression_usage
from kinfolk.server.speculative import Speculative, speculative_usage


def usage_of(
    ends: Sequence[Ended],
    choices: int,
    speculative: Speculative | None,
    prompts: Sequence[Prompt],
) -> dict[str, Any]:
    """``usage`` of a response, in tokens and milliseconds. ``ends`` are in order of their index,
    ``choices`` for each of the ``prompts``; ``speculative`` is that field of the request."""
    firsts = ends[::choices]
    prompt = sum(end.usage.prompt for end in firsts)
    completion = sum(end.tokens for end in ends)
    drafts = DraftCounts.total(end.usage.drafts for end in ends)
    # Said only of paged requests: see --kvflash.
    exact = {} if all(end.usage.exact for end in ends) else {"exact": False}
    prompt_seconds, decode_seconds = _seconds(ends)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": _cached(firsts),
        **exact,
        **compression_usage(prompts),
        "completion_tokens_details": {
            "reasoning_tokens": sum(end.reasoning_tokens for end in ends),
            "accepted_prediction_tokens": drafts.accepted,
            "rejected_prediction_tokens": drafts.drafted - drafts.accepted,
        },
        "accept_rate": round(drafts.accept_rate, 3),
        "speculative": speculative_usage(speculative, drafts),
        "timings": {
            "prefill_ms": _milliseconds(prompt_seconds),
            "decode_ms": _milliseconds(decode_seconds),
            "decode_tokens_per_sec": _rate(completion - len(ends), decode_seconds),
        },
    }


def _cached(prompts: Sequence[Ended]) -> dict[str, Any]:
    """Prompt tokens restored from checkpoints, in all and by the place of the checkpoint."""
    places: dict[str, int] = {}
    for end in prompts:
        if end.usage.reused_from is not None:
            place = end.usage.reused_from
            places[place] = places.get(place, 0) + end.usage.reused
    total = {"cached_tokens": sum(end.usage.reused for end in prompts)}
    return total | ({"cached_tokens_from": places} if places else {})


def timings_of(ends: Sequence[Ended], choices: int) -> dict[str, Any]:
    """``timings`` of a response, in llama.cpp's fields. The first token counts as prompt time."""
    prompts = ends[::choices]
    cached = sum(end.usage.reused for end in prompts)
    read = sum(end.usage.prompt for end in prompts) - cached
    generated = sum(end.tokens for end in ends)
    prompt_seconds, decode_seconds = _seconds(ends)
    return {
        "cache_n": cached,
        "prompt_n": read,
        "prompt_ms": _milliseconds(prompt_seconds),
        "prompt_per_token_ms": _milliseconds(prompt_seconds / read if read else 0.0),
        "prompt_per_second": _rate(read, prompt_seconds),
        "predicted_n": generated,
        "predicted_ms": _milliseconds(decode_seconds),
        "predicted_per_token_ms": _milliseconds(
            decode_seconds / (generated - len(ends)) if generated > len(ends) else 0.0
        ),
        "predicted_per_second": _rate(generated - len(ends), decode_seconds),
    }


def _seconds(ends: Sequence[Ended]) -> tuple[float, float]:
    """(prompt, decode) seconds; of concurrent choices, the longest."""
    return (
        max(end.timings.prompt for end in ends),
        max(end.timings.decode for end in ends),
    )


def _milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 1)


def _rate(count: int, seconds: float) -> float:
    return round(count / seconds, 1) if seconds > 0 and count > 0 else 0.0
