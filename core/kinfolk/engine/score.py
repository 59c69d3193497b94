"""Logits of every position of a text, for checks and perplexity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from kinfolk.engine.input_batch import build_input_batch
from kinfolk.engine.loading import LoadedModel
from kinfolk.errors import ContextLengthExceeded
from kinfolk.sched.plan import Item, ItemKind


@torch.inference_mode()
def logits(
    loaded: LoadedModel,
    tokens: Sequence[int],
    *,
    chunk: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Iterator[torch.Tensor]:
    """float32 [rows, vocabulary] for each slice of ``tokens``, in order, on the model's device.

    ``chunk``: rows a step, at most the model's slice length, which is the default. Raises
    :class:`ContextLengthExceeded` when the tokens do not fit the context.
    """
    if len(tokens) > loaded.limits.context:
        raise ContextLengthExceeded(
            f"{len(tokens)} tokens do not fit the context of {loaded.limits.context}; "
            "raise --context or score the text in windows"
        )
    size = min(chunk or loaded.slice_rows, loaded.slice_rows)
    kv_cache, state = loaded.new_state()
    lease = kv_cache.open(len(tokens))
    for start in range(0, len(tokens), size):
        part = tuple(tokens[start : start + size])
        kv_cache.tables.extend(lease, start + len(part))
        state.apply(kv_cache.take_operations())
        item = Item(lease, "score", ItemKind.PREFILL, part, start)
        batch = build_input_batch([item], state, all_logits=True).batch
        hidden = loaded.model.forward(batch, state).hidden
        yield loaded.model.logits(loaded.model.norm(hidden))
        kv_cache.tables.advance(lease, start + len(part))
        if progress is not None:
            progress(start + len(part), len(tokens))
