"""The decoder: embedding, layers, final norm and head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from kinfolk.model_api import CommitBatch, Forward, StateView, StepBatch
from kinfolk.nn.context import BuildContext
from kinfolk.nn.features import FeatureLayers
from kinfolk.nn.layer_inputs import LayerInputs
from kinfolk.nn.linear import Linear
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.residual import Residual
from kinfolk.nn.step import Mixer, Step
from kinfolk_kernels.embedding.op import EMBEDDING, EmbeddingArguments
from kinfolk_kernels.softcap.op import SOFTCAP, SoftcapArguments


class Layer(Protocol):
    """One layer on the residual stream.

    ``stream.normed(norm)`` adds the pending branch of the previous layer and norms the sum in one
    fused kernel; ``stream.tensor()`` only adds it. A layer returns its own last branch pending:
    ``Residual(x, branch)``.
    """

    def __call__(self, stream: Residual, step: Step) -> tuple[Residual, Any]:
        """The stream after the layer, and the trace that :meth:`commit` needs, or ``None``."""
        ...

    def commit(self, trace: Any, kept: CommitBatch, view: StateView) -> None:
        """Advance the layer's recurrent state along kept rows."""
        ...


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

    def __call__(self, stream: Residual, step: Step) -> tuple[Residual, Any]:
        x, normed = stream.normed(self.mixer_norm)
        mixed, trace = self.mixer(normed, step)
        x, normed = Residual(x, mixed).normed(self.feed_norm)
        return Residual(x, self.feed_forward(normed)), trace

    def commit(self, trace: Any, kept: CommitBatch, view: StateView) -> None:
        self.mixer.commit(trace, kept, view)


class Decoder:
    """A model of layers on one residual stream, float32 [R, width].

    ``embedding_scale`` multiplies the embedding. ``softcap`` c maps logits l to c tanh(l / c).
    ``layer_inputs`` computes ``Step.layer_inputs`` from tokens and embedding.
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
        self.embedding, self.embedding_scale = embedding, embedding_scale
        self.embed = context.ops.bind(EMBEDDING, EmbeddingArguments(embedding, embedding_scale))
        self.layer_inputs = layer_inputs
        self.softcap_limit = softcap
        self.softcap = (
            None
            if softcap is None
            else context.ops.bind(SOFTCAP, SoftcapArguments(softcap, context.device))
        )
        self.layers = tuple(layers)
        # A quantised head returns logits in the dtype of its input: float32 loses nothing.
        self.final_norm = (
            norm if isinstance(head, torch.Tensor) else norm.with_output_dtype(torch.float32)
        )
        self.output = Linear(context, head, self.final_norm.dtype)
        self._features = FeatureLayers()

    def features(self, layers: Sequence[int], *, final: bool = False) -> None:
        self._features = FeatureLayers.of(layers, final, len(self.layers))

    def forward(self, batch: StepBatch, view: StateView) -> Forward:
        x = self.embed(batch.tokens)
        inputs = None if self.layer_inputs is None else self.layer_inputs(batch.tokens, x)
        step = Step(batch, view, inputs)
        stream, trace, features = Residual(x), [], self._features.of_step(x)
        for index, layer in enumerate(self.layers):
            stream, entry = layer(stream, step)
            trace.append(entry)
            if features is not None:
                stream = features.tap(index, stream)
        hidden = stream.tensor()
        found = None if features is None else features.finish(hidden, self.final_norm)
        return Forward(hidden, tuple(trace), found)

    def commit(self, trace: Sequence[Any], kept: CommitBatch, view: StateView) -> None:
        for layer, entry in zip(self.layers, trace, strict=True):
            if entry is not None:
                layer.commit(entry, kept, view)

    def norm(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.final_norm(hidden)

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        logits = self.output(normed).float()
        return logits if self.softcap is None else self.softcap(logits)
