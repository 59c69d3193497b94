"""A decoder: embedding, layers, final norm, head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from kinfolk.model_api import CommitBatch, Forward, StateView, StepBatch
from kinfolk.nn.context import BuildContext
from kinfolk.nn.linear import Linear
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.step import Mixer, Step


class Layer(Protocol):
    """One layer on the residual stream."""

    def __call__(self, x: torch.Tensor, step: Step) -> tuple[torch.Tensor, Any]: ...

    def commit(self, trace: Any, kept: CommitBatch, view: StateView) -> None: ...


class PreNormLayer:
    """x + mixer(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(
        self,
        mixer_norm: RMSNorm,
        mixer: Mixer,
        feed_norm: RMSNorm,
        feed_forward: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        self.mixer_norm, self.mixer = mixer_norm, mixer
        self.feed_norm, self.feed_forward = feed_norm, feed_forward

    def __call__(self, x: torch.Tensor, step: Step) -> tuple[torch.Tensor, Any]:
        mixed, trace = self.mixer(self.mixer_norm(x), step)
        x = x + mixed
        return x + self.feed_forward(self.feed_norm(x)), trace

    def commit(self, trace: Any, kept: CommitBatch, view: StateView) -> None:
        self.mixer.commit(trace, kept, view)


class Decoder:
    """A model of layers on one residual stream, float32 [R, width]."""

    def __init__(
        self,
        context: BuildContext,
        *,
        embedding: Any,
        layers: Sequence[Layer],
        norm: RMSNorm,
        head: Any,
    ) -> None:
        self.ops = context.ops
        self.embedding = embedding
        self.layers = tuple(layers)
        self.norm = norm
        self.output = Linear(context.ops, head)
        self.captured: dict[int, torch.Tensor] = {}
        self._capture: frozenset[int] = frozenset()

    def forward(self, batch: StepBatch, view: StateView) -> Forward:
        x = self.embed(batch.tokens)
        step = Step(batch, view)
        trace = []
        for index, layer in enumerate(self.layers):
            x, entry = layer(x, step)
            trace.append(entry)
            if index in self._capture:
                self.captured[index] = x
        return Forward(x, tuple(trace))

    def commit(self, trace: Sequence[Any], kept: CommitBatch, view: StateView) -> None:
        for layer, entry in zip(self.layers, trace, strict=True):
            if entry is not None:
                layer.commit(entry, kept, view)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.ops.embedding(tokens, self.embedding)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.output(self.norm(hidden)).float()

    def features(self, layers: Sequence[int]) -> None:
        self._capture = frozenset(layers)
        self.captured = {}
