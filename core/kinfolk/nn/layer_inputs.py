"""Per-layer embeddings: each layer reads a small vector of its own besides the residual stream.

The vector of a row and a layer is computed once a step, from the row's token and its embedding. The
layer's last branch reads it.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from kinfolk.nn.context import BuildContext
from kinfolk.nn.linear import Linear
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.residual import Residual
from kinfolk.nn.step import Step
from kinfolk_kernels.act_and_mul.op import ACT_AND_MUL, ActAndMulArguments
from kinfolk_kernels.embedding.op import EMBEDDING, EmbeddingArguments


class LayerInputs:
    """``table`` [V, layers * P] holds the part that depends on the token alone, ``projection``
    [layers * P, width] computes a part from its embedding, which ``norm`` normalises over the P
    numbers of each layer."""

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
    """x + norm(W_out (gelu(W_gate x) * input)), where ``input`` is the vector of this layer."""

    def __init__(
        self, context: BuildContext, layer: int, *, gate: Any, output: Any, norm: RMSNorm
    ) -> None:
        self.dtype = context.dtype
        self.layer = layer
        self.gate, self.output = Linear(context, gate), Linear(context, output)
        arguments = ActAndMulArguments("gelu_tanh", context.dtype, context.device)
        self.act_and_mul = context.ops.bind(ACT_AND_MUL, arguments)
        self.norm = norm

    def __call__(self, stream: Residual, step: Step) -> Residual:
        assert step.layer_inputs is not None
        x = stream.tensor()
        inputs = step.layer_inputs[self.layer].to(self.dtype)
        gated = self.act_and_mul(self.gate(x.to(self.dtype)), inputs)
        return Residual(x, self.norm(self.output(gated)))
