"""The epilogue of attention: gates, a change of dtype, int8 rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn.functional import softplus

from kinfolk_kernels.int8_rows import Int8Rows, quantize

Activation = Literal["identity", "softplus"]


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The result is multiplied by sigmoid(``gate`` [R, Hq, Dv]) and by the ``activation`` of
    ``factor`` [R, Hq, 1 or Dv], and stored in ``dtype``, by default that of the query. ``int8``:
    also store int8 rows.
    """

    gate: torch.Tensor | None = None
    factor: torch.Tensor | None = None
    dtype: torch.dtype | None = None
    int8: bool = False
    activation: Activation = "identity"


@dataclass(frozen=True, slots=True)
class Mixed:
    """Attention after its epilogue: values [R, Hq, Dv], and int8 rows of Hq * Dv numbers if the
    epilogue asks for them, computed from the numbers before rounding to ``values``."""

    values: torch.Tensor
    int8: Int8Rows | None = None


def finish(y: torch.Tensor, epilogue: Epilogue, dtype: torch.dtype) -> Mixed:
    """Apply the epilogue to y [R, Hq, Dv]; ``dtype`` is used if the epilogue has none."""
    wide = y.float()
    if epilogue.gate is not None:
        wide = wide * epilogue.gate.float().sigmoid()
    if epilogue.factor is not None:
        factor = epilogue.factor.float()
        wide = wide * (softplus(factor) if epilogue.activation == "softplus" else factor)
    rows = quantize(wide.flatten(1)) if epilogue.int8 else None
    return Mixed(wide.to(epilogue.dtype or dtype), rows)
