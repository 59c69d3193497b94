"""A DFlash drafter as the loop trains it, and its file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from kinfolk.convert.driver import convert_drafter
from kinfolk.convert.find import DrafterConverter
from kinfolk.train.blocks import BlockDrafter, Blocks
from kinfolk.train.dflash.network import Network, initial_parameters
from kinfolk.train.dflash.shape import DrafterShape
from kinfolk.train.kinds import Writing
from kinfolk.train.target import FrozenTarget
from kinfolk.train.texts import Text


class TrainedDFlash(BlockDrafter):
    """See :class:`kinfolk.train.kinds.TrainedDrafter`."""

    def __init__(
        self, shape: DrafterShape, target: FrozenTarget, *, anchors: int, seed: int
    ) -> None:
        super().__init__(target, block=shape.block, gamma=shape.gamma, anchors=anchors)
        self.shape = shape
        initial = initial_parameters(shape, target.last_norm, seed)
        self.parameters = {
            name: tensor.to(target.device).requires_grad_() for name, tensor in initial.items()
        }
        self._network = Network(shape, self.parameters)

    def logits(self, text: Text, blocks: Blocks, counted: torch.Tensor) -> torch.Tensor:
        noise = torch.full_like(blocks.labels, self.shape.mask_token)
        noise[:, 0] = blocks.tokens
        features, embedded = self.target.features(text), self.target.embed(noise)
        on_gpu = self.target.device.type == "cuda"
        with torch.autocast(self.target.device.type, torch.bfloat16, enabled=on_gpu):
            rows = self._network(features, embedded, blocks.anchors)
        return self.target.logits(rows[counted])

    def write(self, parameters: Mapping[str, torch.Tensor], writing: Writing) -> int:
        """Write the file: the authors' directory of these weights, converted."""
        registry, loaded = writing.registry, self.target.loaded
        tensors = {name: t.detach().float().cpu().contiguous() for name, t in parameters.items()}
        with tempfile.TemporaryDirectory() as name:
            # The file's general keys are read out of the folder's name, so it is always the same.
            folder = Path(name) / "drafter"
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(self.shape.config_json()))
            save_file(tensors, folder / "model.safetensors")
            written = convert_drafter(
                folder,
                writing.path,
                outtype=writing.outtype,
                target=loaded.file.path,
                families=[provided.value for provided in registry.families.values()],
                drafters=[
                    DrafterConverter(provided.value, provided.source)
                    for provided in registry.drafters.values()
                ],
                formats=registry.formats(),
                name=writing.name or f"{loaded.config.name} drafter",
                overwrite=writing.overwrite,
                progress=writing.progress,
            )
        return written.nbytes
