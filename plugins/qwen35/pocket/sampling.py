"""Samples from the training model, many sequences in a batch.

Every step recomputes the whole prefix, so the model needs no cache. For 128 tokens this is cheap on
a GPU.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from pocket.model import PocketModel
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

ROUND = 64


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters; temperature 0 is greedy, ``repetition`` is CTRL's (2019) penalty."""

    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Completion:
    """``tokens`` are without the end token; ``ended`` says that the model ended the text."""

    tokens: list[int]
    text: str
    ended: bool


def distribution(logits: Tensor, seen: Tensor, how: Sampling) -> Tensor:
    """Probabilities [B, vocab] of the next token; ``seen`` [B, vocab] marks previous tokens."""
    if how.repetition != 1.0:
        damped = torch.where(logits > 0, logits / how.repetition, logits * how.repetition)
        logits = torch.where(seen, damped, logits)
    if how.temperature == 0:
        return F.one_hot(logits.argmax(-1), logits.shape[-1]).float()
    p = (logits / how.temperature).softmax(-1)
    ordered, places = p.sort(dim=-1, descending=True)
    keep = ordered.cumsum(-1) - ordered < how.top_p
    keep &= ordered >= how.min_p * ordered[:, :1]
    if how.top_k:
        keep[:, how.top_k :] = False
    kept = torch.zeros_like(p).scatter(-1, places, torch.where(keep, ordered, 0.0))
    return kept / kept.sum(-1, keepdim=True)


@torch.no_grad()
def complete(
    model: PocketModel,
    tokenizer: Tokenizer,
    prompts: list[str],
    seeds: list[int],
    how: Sampling,
    count: int,
    end: int,
) -> list[Completion]:
    """Continue ``prompts[i]`` with ``seeds[i]`` by ``count`` tokens, up to the token ``end``.

    The random numbers of a row depend on its seed only, not on the other rows.
    """
    device = next(model.parameters()).device
    encoded = [tokenizer.encode(p, add_special_tokens=False).ids for p in prompts]
    room = max(map(len, encoded)) + count
    ids = torch.zeros(len(prompts), -(-room // ROUND) * ROUND, dtype=torch.int64, device=device)
    seen = torch.zeros(len(prompts), model.config.vocab_size, dtype=torch.bool, device=device)
    for row, prompt in enumerate(encoded):
        ids[row, : len(prompt)] = torch.tensor(prompt, device=device)
        seen[row, ids[row, : len(prompt)]] = True
    at = torch.tensor([len(prompt) for prompt in encoded], device=device)
    draws = torch.stack(
        [torch.rand(count, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    ).to(device)
    rows = torch.arange(len(prompts), device=device)
    for step in range(count):
        hidden = model.model(ids)[rows, at - 1]
        logits = F.linear(hidden, model.model.embed_tokens.weight).float()
        p = distribution(logits, seen, how)
        steps = p.cumsum(-1)
        drawn = (steps <= draws[:, step, None] * steps[:, -1:]).sum(-1)
        ids[rows, at] = drawn
        seen[rows, drawn] = True
        at += 1
    return [
        _completion(tokenizer, row[len(prompt) : len(prompt) + count], end)
        for row, prompt in zip(ids.tolist(), encoded, strict=True)
    ]


def _completion(tokenizer: Tokenizer, tokens: list[int], end: int) -> Completion:
    ended = end in tokens
    tokens = tokens[: tokens.index(end)] if ended else tokens
    return Completion(tokens, tokenizer.decode(tokens, skip_special_tokens=False), ended)
