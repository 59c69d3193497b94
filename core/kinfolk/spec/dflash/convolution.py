"""Grouped dynamic convolutions over the rows of a block, around a part of a layer (DFlash 2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kinfolk.model_api import CommitBatch, StateView
from kinfolk.nn.context import BuildContext
from kinfolk.nn.linear import Linear
from kinfolk.nn.step import Mixer, Step


class BlockConvolution:
    """A causal convolution of a part's input, and one of its output, with kernels that depend on
    the input.

    ``base`` [2, taps, width] and ``projection`` [2 * taps * groups, width] are added to a kernel:
    channels of one group share what is projected. Kernel 0 is for the input, kernel 1 for the
    output. ``rows``: how many rows a block has; a row sees none of another block.
    """

    def __init__(
        self, context: BuildContext, base: torch.Tensor, projection: Any, rows: int
    ) -> None:
        self.base, self.rows = base, rows
        self.projection = Linear(context, projection)

    def kernels(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [R, width] -> the kernels of input and output, float32 [R, taps, width] each."""
        sides, taps, width = self.base.shape
        dynamic = self.projection(x).float().view(x.shape[0], sides, taps, -1)
        dynamic = dynamic.repeat_interleave(width // dynamic.shape[-1], -1)
        first, second = (self.base + dynamic).unbind(1)
        return first, second

    def convolve(self, kernel: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """The sum over s of kernel[:, s] times the row s before, in the dtype of x [R, width]."""
        total = kernel[:, 0] * x
        for step in range(1, min(kernel.shape[1], self.rows)):
            blocks = x.view(-1, self.rows, x.shape[-1])
            shifted = torch.nn.functional.pad(blocks[:, :-step], (0, 0, step, 0))
            total = total + kernel[:, step] * shifted.view_as(x)
        return total.to(x.dtype)


class ConvolvedMixer:
    """A mixer between the two convolutions."""

    def __init__(self, convolution: BlockConvolution, mixer: Mixer) -> None:
        self.convolution, self.mixer = convolution, mixer

    def __call__(self, x: torch.Tensor, step: Step) -> tuple[torch.Tensor, Any]:
        before, after = self.convolution.kernels(x)
        mixed, trace = self.mixer(self.convolution.convolve(before, x), step)
        return self.convolution.convolve(after, mixed), trace

    def commit(self, trace: Any, kept: CommitBatch, view: StateView) -> None:
        self.mixer.commit(trace, kept, view)


class ConvolvedFeedForward:
    """A feed-forward part between the two convolutions."""

    def __init__(
        self, convolution: BlockConvolution, feed_forward: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self.convolution, self.feed_forward = convolution, feed_forward

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        before, after = self.convolution.kernels(x)
        mixed = self.feed_forward(self.convolution.convolve(before, x))
        return self.convolution.convolve(after, mixed)
