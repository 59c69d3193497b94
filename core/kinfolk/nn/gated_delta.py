"""Gated delta net: a linear-attention mixer with a short convolution (Yang et al., 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kinfolk.model_api import CommitBatch, StateView
from kinfolk.nn.context import BuildContext
from kinfolk.nn.linear import Linear, Linears
from kinfolk.nn.step import Step
from kinfolk_kernels.causal_conv.op import (
    CAUSAL_CONV_COMMIT,
    DELTA_INPUTS,
    CausalConvCommitArguments,
    DeltaGates,
    DeltaInputsArguments,
)
from kinfolk_kernels.gated_delta.op import (
    GATED_DELTA,
    GATED_DELTA_COMMIT,
    GatedDeltaArguments,
)
from kinfolk_kernels.rms_norm.op import GATED_RMS_NORM, GatedRMSNormArguments

L2_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """``key_heads`` heads of ``key_dim``, ``value_heads`` of ``value_dim``; ``conv`` taps."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv: int


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """``qkv`` [channels, width], ``z`` [value width, width], ``alpha`` and ``beta`` [value heads,
    width], ``conv`` float32 [channels, taps], ``a`` = -exp(A_log) and ``dt`` float32 [value heads],
    ``norm`` float32 [value_dim], ``output`` [width, value width]. Value head h belongs to key head
    h mod key_heads."""

    qkv: Any
    z: Any
    alpha: Any
    beta: Any
    conv: torch.Tensor
    a: torch.Tensor
    dt: torch.Tensor
    norm: torch.Tensor
    output: Any


class GatedDeltaNet:
    """One gated delta net layer."""

    def __init__(
        self,
        context: BuildContext,
        layer: int,
        shape: DeltaShape,
        weights: DeltaWeights,
        eps: float,
    ) -> None:
        ops = context.ops
        self.layer = layer
        self.weights = weights
        self.inputs = Linears(context, (weights.qkv, weights.z, weights.alpha, weights.beta))
        self.output = Linear(context, weights.output)
        # The norm comes first, then the gate.
        arguments = GatedRMSNormArguments(weights.norm, eps, context.dtype, context.device)
        self.gated_rms_norm = ops.bind(GATED_RMS_NORM, arguments)
        self.delta_inputs = ops.bind(
            DELTA_INPUTS,
            DeltaInputsArguments(
                weights.conv,
                shape.key_heads,
                shape.value_heads,
                L2_EPS,
                context.dtype,
                context.device,
            ),
        )
        self.causal_conv_commit = ops.bind(
            CAUSAL_CONV_COMMIT, CausalConvCommitArguments(context.dtype, context.device)
        )
        delta = GatedDeltaArguments(
            shape.key_heads,
            shape.value_heads,
            shape.key_dim,
            shape.value_dim,
            context.dtype,
            context.device,
        )
        self.gated_delta = ops.bind(GATED_DELTA, delta)
        self.gated_delta_commit = ops.bind(GATED_DELTA_COMMIT, delta)
        self._commits_alike = (shape, delta)

    def __call__(self, x: torch.Tensor, step: Step) -> tuple[torch.Tensor, Any]:
        state = step.view.recurrent(self.layer)
        u, z, alpha, beta = self.inputs(x)
        weights = self.weights
        gates = DeltaGates(alpha, beta, weights.a, weights.dt)
        inputs = self.delta_inputs(u, gates, state["conv"], step.batch)
        out, trace = self.gated_delta(
            inputs.q, inputs.k, inputs.v, inputs.g, inputs.beta, state["delta"], step.batch
        )
        return self.output(self.gated_rms_norm(out, z)), None if trace is None else (u, trace)

    def commit(self, trace: Any, kept: CommitBatch, view: StateView) -> None:
        u, delta = trace
        state = view.recurrent(self.layer)
        key = self._commits_alike
        kept.together(("conv", key), self.causal_conv_commit, (u, state["conv"]))
        kept.together(("delta", key), self.gated_delta_commit, (delta, state["delta"]))
