"""Bits per byte of texts; long texts are scored in windows.

Each text is a separate document behind an end-of-text token. A text longer than a window continues
in the next window, which first repeats ``OVERLAP`` tokens as context; every token is scored once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pocket.model import PocketModel
from tokenizers import Tokenizer
from torch.nn import functional as F

WINDOW = 4096
OVERLAP = 512


@dataclass(frozen=True, slots=True)
class Window:
    """Input of the model: ``ids[first:]`` are scored, the tokens before them are context."""

    ids: NDArray[np.int64]
    first: int


class Scorer(Protocol):
    """Computes the negative log-likelihood of windows of text."""

    def nats(self, windows: list[Window]) -> Iterator[float]:
        """For each window, the summed negative log-likelihood (nats) of its scored tokens."""


def windows(ids: list[int], end: int, window: int = WINDOW, overlap: int = OVERLAP) -> list[Window]:
    """Cut the tokens of a text into windows; the token ``end`` goes before the first."""
    whole = np.array([end, *ids], dtype=np.int64)
    found, scored = [], 1
    while scored < len(whole):
        begin = max(0, scored - overlap) if scored > 1 else 0
        found.append(Window(whole[begin : begin + window], scored - begin))
        scored = min(len(whole), begin + window)
    return found


@dataclass(frozen=True, slots=True)
class Score:
    """Totals of one or more texts."""

    nats: float
    bytes: int
    tokens: int

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / max(1, self.bytes)


def score(scorer: Scorer, plain: Tokenizer, end: int, texts: Iterable[str]) -> list[Score]:
    """One score for each text; ``plain`` encodes without special tokens."""
    encoded = [(text, plain.encode(text, add_special_tokens=False).ids) for text in texts]
    cuts = [windows(ids, end) for _, ids in encoded]
    nats = scorer.nats([window for cut in cuts for window in cut])
    return [
        Score(sum(next(nats) for _ in cut), len(text.encode()), len(ids))
        for (text, ids), cut in zip(encoded, cuts, strict=True)
    ]


def total(scores: Iterable[Score]) -> Score:
    scores = list(scores)
    return Score(
        sum(s.nats for s in scores), sum(s.bytes for s in scores), sum(s.tokens for s in scores)
    )


class TorchScorer:
    """Scores with the training model, in batches of windows of similar length."""

    def __init__(self, model: PocketModel, batch_tokens: int = 65_536) -> None:
        self.model = model
        self.batch_tokens = batch_tokens
        self.device = next(model.parameters()).device

    def nats(self, windows: list[Window]) -> Iterator[float]:
        order = sorted(range(len(windows)), key=lambda i: len(windows[i].ids))
        results = [0.0] * len(windows)
        while order:
            count = max(1, self.batch_tokens // len(windows[order[-1]].ids))
            batch, order = order[-count:], order[:-count]
            for index, value in zip(batch, self._batch([windows[i] for i in batch]), strict=True):
                results[index] = value
        return iter(results)

    @torch.no_grad()
    def _batch(self, windows: list[Window]) -> list[float]:
        longest = max(len(w.ids) for w in windows)
        ids = torch.zeros(len(windows), longest, dtype=torch.int64)
        counted = torch.zeros(len(windows), longest)
        for row, window in enumerate(windows):
            ids[row, : len(window.ids)] = torch.from_numpy(window.ids)
            counted[row, window.first : len(window.ids)] = 1
        ids, counted = ids.to(self.device), counted.to(self.device)
        hidden = self.model.model(ids[:, :-1])
        sums = []
        for row in range(len(windows)):
            logits = F.linear(hidden[row], self.model.model.embed_tokens.weight).float()
            losses = F.cross_entropy(logits, ids[row, 1:], reduction="none")
            sums.append((losses * counted[row, 1:]).sum())
        return [float(x) for x in torch.stack(sums).double().cpu()]
