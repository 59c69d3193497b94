"""The target's hidden state of the last committed row of each sequence, kept as recurrent state."""

from __future__ import annotations

import torch

from kinfolk.model_api import CommitBatch, StateView, StepBatch
from kinfolk.ops.binding import Ops
from kinfolk.spec.mtp.prepare import HIDDEN_STATE
from kinfolk.types import DUMMY, NO_PARENT


class HiddenState:
    """The recurrent state of entry ``layer``, a tensor ``HIDDEN_STATE`` [slots, width]."""

    def __init__(self, layer: int, ops: Ops) -> None:
        self.layer, self.ops = layer, ops

    def rows(self, view: StateView) -> torch.Tensor:
        """[slots, width], by slot."""
        return view.recurrent(self.layer)[HIDDEN_STATE]

    def extend(self, features: torch.Tensor, batch: StepBatch, view: StateView) -> None:
        """Keep the last row of segments without drafts, and the rows of checkpoints; ``features``
        [R, width] are the hidden states of a step."""
        hidden = self.rows(view)
        first, count, slot, drafted = batch.layout.spans.long().unbind(1)
        last = torch.where((count > 0) & (drafted == 0), first + count - 1, NO_PARENT)
        self._keep(hidden, slot, features, last)
        self._keep(hidden, batch.store_slots, features, batch.store_rows)

    def commit(self, features: torch.Tensor, kept: CommitBatch, view: StateView) -> None:
        """Keep the last of the kept rows of drafted segments."""
        last = kept.path.gather(1, (kept.n_keep - 1).clamp_min(0)[:, None])[:, 0]
        last = torch.where(kept.n_keep > 0, last, NO_PARENT)
        self._keep(self.rows(view), kept.slot, features, last)

    def _keep(
        self, hidden: torch.Tensor, slots: torch.Tensor, features: torch.Tensor, rows: torch.Tensor
    ) -> None:
        """Let ``slots`` [n] have the features of ``rows`` [n]; -1 = leave the slot as it is."""
        if self.ops.launches_suppressed:
            return  # what ops computed is undefined, and the step runs again
        written = torch.where(rows >= 0, slots, DUMMY)
        hidden[written] = features[rows.clamp_min(0)].to(hidden.dtype)
