"""What a layer sees of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from kinfolk.model_api import CommitBatch, StateView, StepBatch


@dataclass(frozen=True, slots=True)
class Step:
    """The rows of the step and the state they may touch.

    ``layer_inputs`` [layers, R, P] feeds each layer besides the residual stream, if the model has
    such inputs.
    """

    batch: StepBatch
    view: StateView
    layer_inputs: torch.Tensor | None = None


class Mixer(Protocol):
    """The part of a layer in which rows see each other."""

    def __call__(self, x: torch.Tensor, step: Step) -> tuple[torch.Tensor, Any]:
        """[R, width] -> [R, width] and what ``commit`` needs for drafted rows."""
        ...

    def commit(self, trace: Any, kept: CommitBatch, view: StateView) -> None:
        """Advance this layer's recurrent state along kept rows."""
        ...
