"""The ops that follow a model's forward: they choose tokens and pack the outputs of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from kinfolk.ops.binding import Ops
from kinfolk.verify_api import AcceptDrafts, Draw
from kinfolk_kernels.accept_drafts.op import ACCEPT_DRAFTS, AcceptDraftsArguments
from kinfolk_kernels.pack_outputs.op import PACK_OUTPUTS, PackOutputsArguments
from kinfolk_kernels.sample.op import SAMPLE, SampleArguments

PackOutputs = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""The op ``pack_outputs``, bound."""


@dataclass(frozen=True, slots=True)
class StepOps:
    """The ops, bound to back ends for one device."""

    sample: Draw
    accept_drafts: AcceptDrafts
    pack_outputs: PackOutputs

    @classmethod
    def bind(cls, ops: Ops, device: torch.device) -> StepOps:
        return cls(
            sample=ops.bind(SAMPLE, SampleArguments(device)),
            accept_drafts=ops.bind(ACCEPT_DRAFTS, AcceptDraftsArguments(device)),
            pack_outputs=ops.bind(PACK_OUTPUTS, PackOutputsArguments(device)),
        )
