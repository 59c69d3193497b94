"""The shape of a block for multi-token prediction that is to be trained. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kinfolk.config import ModelConfig
from kinfolk.spec.mtp.block import TrainedLayer


@dataclass(frozen=True, slots=True)
class BlockShape:
    """What the block's network is made of.

    config   the target's, as read from the file with the block
    layer    the layer of the block
    tensors  the block's tensors in the file's order, name -> shape
    block    rows of a draft: the last token and those that the passes guess
    gamma    the loss of pass k weighs exp(-(k - 1) / gamma)
    """

    config: ModelConfig
    layer: TrainedLayer
    tensors: Mapping[str, tuple[int, ...]]
    block: int
    gamma: float
