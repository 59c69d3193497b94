"""The ops ``delta_inputs`` and ``causal_conv_commit``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.causal_conv.reference import causal_conv_commit, delta_inputs
from kinfolk_kernels.op import Op


@dataclass(frozen=True, slots=True)
class DeltaInputsArguments:
    """Computes the inputs of the gated delta rule from a delta net's projections (Yang et al.,
    2024).

    A depthwise causal convolution with SiLU, ``weight`` float32 [C, taps], over the channels of
    ``key_heads`` heads of q and k and ``value_heads`` of v, all of one dimension; q and k to unit
    length, ``eps`` added to the sum of squares, q over sqrt(D); g = a softplus(alpha + dt);
    beta = sigmoid(beta).

    Operands: x [R, C] in ``dtype``; the :class:`DeltaGates` of the rows; state float32
    [slots, taps - 1, C]; the rows of the step. Certain segments advance the state in place, drafted
    ones do not change it; the state after each of ``store_rows`` is copied to ``store_slots``.
    Result: :class:`DeltaRows`.
    """

    weight: torch.Tensor
    key_heads: int
    value_heads: int
    eps: float
    dtype: torch.dtype
    device: torch.device

    @property
    def dim(self) -> int:
        return int(self.weight.shape[0]) // (2 * self.key_heads + self.value_heads)


DELTA_INPUTS = Op("delta_inputs", DeltaInputsArguments, delta_inputs)


@dataclass(frozen=True, slots=True)
class CausalConvCommitArguments:
    """Advance the convolution's state along the kept rows of drafted segments.

    Operands: x [R, C] in ``dtype``, as the convolution read it; state float32
    [slots, taps - 1, C]; path int64 [D, T], kept rows padded with -1; n_keep and slot int64 [D].
    A segment with ``n_keep`` 0 does not change the state.
    """

    dtype: torch.dtype
    device: torch.device


CAUSAL_CONV_COMMIT = Op("causal_conv_commit", CausalConvCommitArguments, causal_conv_commit)
