"""Features: the residual stream after chosen layers, which drafters read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from kinfolk.nn.norm import NormGroup, RMSNorm
from kinfolk.nn.residual import Residual

DTYPE: Final = torch.bfloat16


@dataclass(frozen=True, slots=True)
class FeatureLayers:
    """The layers whose features are asked for, in the order of their columns, and whether the
    normed output of the last one stands behind them (``final``)."""

    layers: tuple[int, ...] = ()
    final: bool = False

    @classmethod
    def of(cls, layers: Sequence[int], final: bool, count: int) -> FeatureLayers:
        """Raises :class:`ValueError` for a layer that is named twice, or that a model of ``count``
        layers does not have."""
        for place, layer in enumerate(layers):
            if not 0 <= layer < count:
                raise ValueError(f"layer {layer} has no features: the model has {count} layers")
            if layer in layers[:place]:
                raise ValueError(f"features of layer {layer} are asked for twice")
        return cls(tuple(layers), final)

    def of_step(self, x: torch.Tensor) -> FeatureRows | None:
        """Room for the features of a step whose stream is like ``x`` [R, width]; ``None`` if
        nothing was asked for."""
        return FeatureRows(self, x) if self.layers or self.final else None


class FeatureRows:
    """The features of one step: ``rows`` bfloat16 [R, N * width]."""

    def __init__(self, wanted: FeatureLayers, x: torch.Tensor) -> None:
        (count, width), parts = x.shape, len(wanted.layers) + wanted.final
        self.rows = torch.empty(count, parts * width, dtype=DTYPE, device=x.device)
        self._parts = self.rows.split(width, 1)
        self._place = {layer: place for place, layer in enumerate(wanted.layers)}
        self._final = wanted.final
        self._previous: TappedResidual | None = None

    def tap(self, layer: int, stream: Residual) -> Residual:
        """``stream``, the one after ``layer``, which writes its features when it is added up."""
        if self._previous is not None:
            self._previous.write()
            self._previous = None
        if layer not in self._place:
            return stream
        part = self._parts[self._place[layer]]
        if stream.branch is None:
            part.copy_(stream.total)
            return stream
        self._previous = TappedResidual.of(stream, part)
        return self._previous

    def finish(self, hidden: torch.Tensor, norm: RMSNorm) -> torch.Tensor:
        """All features, when ``hidden`` [R, width] has been added up."""
        if self._final:
            self._parts[-1].copy_(norm(hidden))
        return self.rows


@dataclass(frozen=True, slots=True)
class TappedResidual(Residual):
    """A stream that also writes its sum to ``unwritten`` when it is first computed.

    The next reader computes the sum in any case, so a tap launches no second sum, and the numbers
    of the model stay the same. It is written at once: the reader may change the tensor.
    """

    unwritten: list[torch.Tensor] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    @classmethod
    def of(cls, stream: Residual, to: torch.Tensor) -> TappedResidual:
        tapped = cls(stream.total, stream.branch, stream.after, stream.factor)
        tapped.unwritten.append(to)
        return tapped

    def write(self) -> None:
        """Write the sum if no reader has computed it."""
        if self.unwritten:
            self.tensor()

    def tensor(self) -> torch.Tensor:
        return self._written(Residual.tensor(self))

    def normed(self, norms: RMSNorm | NormGroup) -> tuple[torch.Tensor, ...]:
        total, *normed = Residual.normed(self, norms)
        return self._written(total), *normed

    def _written(self, total: torch.Tensor) -> torch.Tensor:
        while self.unwritten:
            self.unwritten.pop().copy_(total)
        return total
