"""A block for multi-token prediction as the loop trains it, and its file."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kinfolk.gguf.values import Value
from kinfolk.train.blocks import BlockDrafter, Blocks
from kinfolk.train.kinds import Writing
from kinfolk.train.mtp.file import write_block
from kinfolk.train.mtp.network import BlockNetwork, initial_parameters
from kinfolk.train.mtp.shape import BlockShape
from kinfolk.train.target import FrozenTarget
from kinfolk.train.texts import Text


class TrainedMTP(BlockDrafter):
    """See :class:`kinfolk.train.kinds.TrainedDrafter`. A pass reads the token of the text, as it
    does in a draft whose tokens so far are right: others do not count."""

    def __init__(
        self,
        shape: BlockShape,
        target: FrozenTarget,
        keys: Mapping[str, Value],
        *,
        anchors: int,
        seed: int,
    ) -> None:
        super().__init__(target, block=shape.block, gamma=shape.gamma, anchors=anchors)
        self.shape, self.keys = shape, keys
        initial = initial_parameters(shape, target.last_norm, seed)
        self.parameters = {
            name: tensor.to(target.device).requires_grad_() for name, tensor in initial.items()
        }
        self._network = BlockNetwork(shape, self.parameters)

    def logits(self, text: Text, blocks: Blocks, counted: torch.Tensor) -> torch.Tensor:
        target = self.target
        # The last token of a block is guessed and read by no pass.
        read = torch.cat([blocks.tokens[:, None], blocks.labels[:, 1:-1]], 1)
        tokens = torch.tensor(text.tokens, device=target.device)
        embedded, hidden = target.embed(tokens), target.features(text)
        on_gpu = target.device.type == "cuda"
        with torch.autocast(target.device.type, torch.bfloat16, enabled=on_gpu):
            rows = self._network(hidden, embedded, target.embed(read), blocks.anchors)
        return target.logits(rows[counted[:, 1:]])

    def write(self, parameters: Mapping[str, torch.Tensor], writing: Writing) -> int:
        """Write the target's file with the block behind its layers, or the block alone."""
        formats = writing.registry.formats()
        numbers = {name: t.detach().float().cpu().numpy() for name, t in parameters.items()}
        return write_block(
            self.target.loaded.file, self.keys, numbers, self.shape.layer, writing, formats
        )
