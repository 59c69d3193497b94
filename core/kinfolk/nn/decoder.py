"""A decoder: embedding, layers, final norm, head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from kinfolk.model_api import CommitBatch, Forward, StateView, StepBatch
from kinfolk.nn.context import BuildContext
from kinfolk.nn.layer_inputs import LayerInputs
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
        x, normed = self.feed_norm.after_adding(x, mixed)
        return x + self.feed_forward(normed), trace

    def commit(self, trace: Any, kept: CommitBatch, view: StateView) -> None:
        self.mixer.commit(trace, kept, view)


class Decoder:
    """A model of layers on one residual stream, float32 [R, width].

    ``embedding_scale`` multiplies the rows of the token table. ``softcap`` c bends logits l to
    c tanh(l / c). ``layer_inputs`` makes what ``Step.layer_inputs`` says from tokens and embedding.
    """

    def __init__(
        self,
        context: BuildContext,
        *,
        embedding: Any,
        layers: Sequence[Layer],
        norm: RMSNorm,
        head: Any,
        embedding_scale: float = 1.0,
        softcap: float | None = None,
        layer_inputs: LayerInputs | None = None,
    ) -> None:
        self.ops = context.ops
        self.embedding, self.embedding_scale = embedding, embedding_scale
        self.layer_inputs, self.softcap = layer_inputs, softcap
        self.layers = tuple(layers)
        # A quantised head takes its input in any type, and its logits have the type of its input.
        self.norm = norm if isinstance(head, torch.Tensor) else norm.giving(torch.float32)
        self.output = Linear(context.ops, head)
        self.captured: dict[int, torch.Tensor] = {}
        self._capture: frozenset[int] = frozenset()

    def forward(self, batch: StepBatch, view: StateView) -> Forward:
        x = self.embed(batch.tokens)
        inputs = None if self.layer_inputs is None else self.layer_inputs(batch.tokens, x)
        step = Step(batch, view, inputs)
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
        rows = self.ops.embedding(tokens, self.embedding)
        return rows if self.embedding_scale == 1.0 else rows * self.embedding_scale

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.output(self.norm(hidden)).float()
        if self.softcap is None:
            return logits
        return (logits / self.softcap).tanh() * self.softcap

    def features(self, layers: Sequence[int]) -> None:
        self._capture = frozenset(layers)
        self.captured = {}
