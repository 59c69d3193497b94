"""A DFlash drafter as the loop trains it: its loss, what it hits, and its file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from kinfolk.convert.driver import Converted, convert_drafter
from kinfolk.train.dflash.blocks import Blocks, blocks_at, sample_anchors
from kinfolk.train.dflash.network import Network, initial_parameters
from kinfolk.train.dflash.shape import DrafterShape
from kinfolk.train.target import FrozenTarget
from kinfolk.train.texts import Text


class TrainedDFlash:
    """See :class:`kinfolk.train.loop.TrainedDrafter`. A text gives ``anchors`` blocks a step."""

    def __init__(
        self, shape: DrafterShape, target: FrozenTarget, *, anchors: int, seed: int
    ) -> None:
        self.shape, self.target, self.anchors = shape, target, anchors
        self.depth = shape.depth
        initial = initial_parameters(shape, target.last_norm, seed)
        self.parameters = {
            name: tensor.to(target.device).requires_grad_() for name, tensor in initial.items()
        }
        self._network = Network(shape, self.parameters)

    def sample(self, text: Text, generator: torch.Generator) -> Blocks:
        anchors = sample_anchors(text, self.anchors, generator)
        return blocks_at(text, anchors, self.shape.block, self.shape.gamma)

    def loss(self, text: Text, blocks: Blocks) -> torch.Tensor:
        """The weighted sum of the cross entropies of all rows."""
        blocks = blocks.to(self.target.device)
        counted = blocks.weights > 0
        logits = self._logits(text, blocks, counted)
        each = torch.nn.functional.cross_entropy(logits, blocks.labels[counted], reduction="none")
        return (each * blocks.weights[counted]).sum()

    @torch.no_grad()
    def hits(self, text: Text, blocks: Blocks) -> torch.Tensor:
        """int8 [A, depth]: 1 where the best token of a row is the text's, 0 where it is another,
        -1 behind the text."""
        blocks = blocks.to(self.target.device)
        counted = blocks.weights > 0
        best = self._logits(text, blocks, counted).argmax(-1)
        found = torch.full(counted.shape, -1, dtype=torch.int8, device=counted.device)
        found[counted] = (best == blocks.labels[counted]).to(torch.int8)
        return found[:, 1:].cpu()

    def _logits(self, text: Text, blocks: Blocks, counted: torch.Tensor) -> torch.Tensor:
        """float32 [n, vocabulary] of the rows that count."""
        noise = torch.full_like(blocks.labels, self.shape.mask_token)
        noise[:, 0] = blocks.tokens
        features, embedded = self.target.features(text), self.target.embed(noise)
        on_gpu = self.target.device.type == "cuda"
        with torch.autocast(self.target.device.type, torch.bfloat16, enabled=on_gpu):
            rows = self._network(features, embedded, blocks.anchors)
        return self.target.logits(rows[counted])

    def write(
        self, parameters: Mapping[str, torch.Tensor], path: Path, **conversion: Any
    ) -> Converted:
        """Write the file: the authors' directory of these weights, converted.

        ``conversion`` are arguments of :func:`kinfolk.convert.driver.convert_drafter`.
        """
        tensors = {name: t.detach().float().cpu().contiguous() for name, t in parameters.items()}
        with tempfile.TemporaryDirectory() as name:
            # The file's general keys are read out of the folder's name, so it is always the same.
            folder = Path(name) / "drafter"
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(self.shape.config_json()))
            save_file(tensors, folder / "model.safetensors")
            return convert_drafter(folder, path, **conversion)
