"""Root-mean-square normalisation with its weight."""

from __future__ import annotations

import torch

from kinfolk.nn.context import BuildContext
from kinfolk_kernels.rms_norm.op import (
    ADD_RMS_NORM,
    RMS_NORM,
    AddRMSNormArguments,
    RMSNormArguments,
)


class RMSNorm:
    """x / rms(x) * w over the last dimension; ``weight`` ``None`` = 1.

    The result has ``dtype``, by default that of the model's activations. ``add`` and
    ``add_rms_norm`` are the deferred residual add: both add a branch to the residual stream float32
    [R, width]; ``add`` returns the sum, ``add_rms_norm`` the sum and its norm.
    """

    def __init__(
        self,
        context: BuildContext,
        weight: torch.Tensor | None,
        eps: float,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.context = context
        self.dtype = dtype or context.dtype
        self.weight = weight
        self.eps = eps
        arguments = RMSNormArguments(weight, eps, self.dtype, context.device)
        self.rms_norm = context.ops.bind(RMS_NORM, arguments)
        self.add = context.ops.bind(ADD_RMS_NORM, _of_sum(context, eps))
        self.add_rms_norm = context.ops.bind(ADD_RMS_NORM, _of_sum(context, eps, self))

    def with_output_dtype(self, dtype: torch.dtype) -> RMSNorm:
        """The same norm with results of another dtype."""
        return RMSNorm(self.context, self.weight, self.eps, dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[..., D] -> [..., D]."""
        return self.rms_norm(x)


class NormGroup:
    """Norms of the same residual stream, fused with a deferred residual add into one kernel.

    Raises :class:`ValueError` if their eps differ.
    """

    def __init__(self, *norms: RMSNorm) -> None:
        eps = [norm.eps for norm in norms]
        if len(set(eps)) != 1:
            raise ValueError(f"norms of one sum have eps {eps}")
        self.norms = norms
        context = norms[0].context
        self.add_rms_norm = context.ops.bind(ADD_RMS_NORM, _of_sum(context, eps[0], *norms))

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """[R, width] -> [R, width] for each norm."""
        return tuple(norm(x) for norm in self.norms)


def _of_sum(context: BuildContext, eps: float, *norms: RMSNorm) -> AddRMSNormArguments:
    return AddRMSNormArguments(
        tuple(norm.weight for norm in norms),
        eps,
        tuple(norm.dtype for norm in norms),
        context.dtype,
        context.device,
    )
