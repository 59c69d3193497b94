"""The step as layers see it, and the protocol of mixers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from kinfolk.model_api import CommitBatch, StateView, StepBatch


@dataclass(frozen=True, slots=True)
class Step:
    """The rows of a step, and the state that they may read and write.

    ``layer_inputs`` float32 [layers, R, P]: per-layer embeddings, if the model has them.
    """

    batch: StepBatch
    view: StateView
    layer_inputs: torch.Tensor | None = None


class Mixer(Protocol):
    """The part of a layer that mixes rows: attention or a recurrent layer."""

    def __call__(self, x: torch.Tensor, step: Step) -> tuple[torch.Tensor, Any]:
        """[R, width] -> [R, width], and the trace of drafted rows that ``commit`` reads."""
        ...

    def commit(self, trace: Any, kept: CommitBatch, view: StateView) -> None:
        """Advance this layer's recurrent state along kept rows."""
        ...
