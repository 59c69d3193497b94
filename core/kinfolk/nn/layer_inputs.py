"""Per-layer embeddings: besides the residual stream, each layer sees a small vector of its own.

The vector of a row and a layer is made from the row's token and from its embedding, once a step,
and enters near the end of the layer.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from kinfolk.nn.context import BuildContext
from kinfolk.nn.linear import Linear
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.step import Step
from kinfolk_kernels.act_and_mul.op import ACT_AND_MUL, ActAndMulArguments
from kinfolk_kernels.embedding.op import EMBEDDING, EmbeddingArguments


class LayerInputs:
    """``table`` [V, layers * P] holds a part that depends on the token alone, ``projection``
    [layers * P, width] makes one from its embedding; ``norm`` works on the P numbers of a layer."""

    def __init__(
        self, context: BuildContext, *, layers: int, table: Any, projection: Any, norm: RMSNorm
    ) -> None:
        self.dtype = context.dtype
        self.layers = layers
        self.table = table
        self.embedding = context.ops.bind(EMBEDDING, EmbeddingArguments(table))
        self.projection = Linear(context, projection)
        self.norm = norm

    def __call__(self, tokens: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """tokens [R], embedded [R, width] -> float32 [layers, R, P]."""
        shape = (tokens.shape[0], self.layers, -1)
        own = self.embedding(tokens).view(shape)
        own = own * math.sqrt(own.shape[-1])
        projected = self.projection((embedded / math.sqrt(embedded.shape[-1])).to(self.dtype))
        mixed = (self.norm(projected.view(shape)).float() + own) / math.sqrt(2)
        return mixed.transpose(0, 1)


class LayerInputBranch:
    """norm(W_out (gelu(W_gate x) * input)) with the input of one layer."""

    def __init__(
        self, context: BuildContext, layer: int, *, gate: Any, output: Any, norm: RMSNorm
    ) -> None:
        self.dtype = context.dtype
        self.layer = layer
        self.gate, self.output = Linear(context, gate), Linear(context, output)
        arguments = ActAndMulArguments("gelu_tanh", context.dtype, context.device)
        self.act_and_mul = context.ops.bind(ACT_AND_MUL, arguments)
        self.norm = norm

    def __call__(self, x: torch.Tensor, step: Step) -> torch.Tensor:
        """[R, width] -> [R, width]."""
        assert step.layer_inputs is not None
        inputs = step.layer_inputs[self.layer].to(self.dtype)
        return self.norm(self.output(self.act_and_mul(self.gate(x.to(self.dtype)), inputs)))
