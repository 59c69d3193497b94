"""What a family gets to build a model with."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk.ops.table import Ops
from kinfolk.plans import StatePlan


@dataclass(frozen=True, slots=True)
class BuildContext:
    """``dtype`` is the type of activations inside a layer; the residual stream is float32.

    ``context`` bounds the positions that will be asked for: tables are as long as that.
    """

    ops: Ops
    device: torch.device
    dtype: torch.dtype
    state: StatePlan
    context: int
