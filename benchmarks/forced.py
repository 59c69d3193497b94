"""Answers that are given: the engine runs with them, and what the model would have chosen at each
of their positions is noted.

So one wrong token does not decide about those behind it. All else is the engine's: slices, captured
steps, chunks that leave and come back. Only what it emits is not the model's.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kinfolk import hookimpl
from kinfolk.spec.verify import accept_drafts
from kinfolk.verify_api import Draft, Kept, RowSampling, VerifyStep


class Forced:
    """A policy that emits the tokens of a text, known by their positions: of one request at a time,
    and without a :meth:`text` none."""

    def __init__(self) -> None:
        self._given: torch.Tensor | None = None
        self._chosen: torch.Tensor | None = None

    def text(self, tokens: Sequence[int], device: torch.device) -> None:
        """The tokens of the next request, prompt and answer. No request may run."""
        self._given = torch.tensor(tokens, dtype=torch.int64, device=device)
        self._chosen = torch.full_like(self._given, -1)
        _settle(device)

    def chosen(self) -> list[int]:
        """At each position the most probable token behind those before it; -1 where no row has
        chosen. No request may run."""
        if self._chosen is None:
            return []
        _settle(self._chosen.device)
        return self._chosen.tolist()

    @hookimpl
    def verify(self, step: VerifyStep, draft: Draft, sampling: RowSampling) -> Kept | None:
        if self._given is None or self._chosen is None:
            return None
        at = sampling.position
        self._chosen[at] = step.logits.argmax(1)
        return accept_drafts(self._given[at][step.rows.clamp_min(0)], draft)


def _settle(device: torch.device) -> None:
    """The engine has streams of its own."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
