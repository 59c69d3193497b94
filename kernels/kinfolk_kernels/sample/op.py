"""The op ``sample``."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk_kernels.op import Op
from kinfolk_kernels.sample.reference import sample


@dataclass(frozen=True, slots=True)
class SampleArguments:
    """Samples tokens: temperature, then top-k, top-p and min-p, then a draw whose random number
    depends only on the row's seed and position.

    Operands: logits float32 [n, V], and the :class:`~kinfolk_kernels.sample.reference.Parameters`
    of the n rows. Result: token ids int64 [n], and bool [n] whether all logits of a row are finite;
    where they are not, the token is undefined.
    """

    device: torch.device


SAMPLE = Op("sample", SampleArguments, sample, capturable=True)
