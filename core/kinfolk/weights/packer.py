"""Repacks quantised tensors for the kernels of a GPU while they are loaded.

A tensor goes to the device in pieces of rows, each of which is repacked there and let go: beside
the model there is never more than a few pieces.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from kinfolk.quant.formats import PLAIN
from kinfolk.quant.tensor import from_map

if TYPE_CHECKING:
    from kinfolk_kernels.planes import Activations, Planes, PlanesStack

PIECE = 32 << 20
"""Bytes of a file that are repacked at a time."""


class Packer:
    """Makes planes on ``device``, to be multiplied with ``activations``."""

    def __init__(self, device: torch.device, activations: Activations) -> None:
        self.device = device
        self.activations = activations
        self._upload = _Upload(device) if device.type == "cuda" else None

    def refuses(self, format: str, shape: tuple[int, ...]) -> str:
        """Why a tensor cannot be packed; empty if it can."""
        from kinfolk_kernels.planes import INTERLEAVE, can_pack

        if format in PLAIN:
            return "plain numbers"
        if not 2 <= len(shape) <= 3:
            return f"it has {len(shape)} dimensions"
        if len(shape) == 3 and shape[1] % (2 * INTERLEAVE):
            # Its halves must be whole groups of interleaved rows.
            return f"matrices of {shape[1]} rows in a stack, no multiple of {2 * INTERLEAVE}"
        return can_pack(format, shape[-1])

    def nbytes(self, format: str, shape: tuple[int, ...]) -> int:
        """Bytes of the planes of a tensor that is not refused."""
        from kinfolk_kernels.packing import empty

        return empty(format, prod(shape[:-1]), shape[-1], "meta", self.activations).nbytes

    def pack(
        self, stored: npt.NDArray[np.uint8], format: str, shape: tuple[int, ...]
    ) -> Planes | PlanesStack:
        """stored [rows, row bytes] of a matrix [N, K] or of a stack [E, N, K]."""
        from kinfolk_kernels.packing import empty, fill
        from kinfolk_kernels.planes import INTERLEAVE

        rows = prod(shape[:-1])
        stored = stored.reshape(rows, -1)
        step = max(1, PIECE // stored.shape[1] // INTERLEAVE) * INTERLEAVE
        planes = empty(format, rows, shape[-1], self.device, self.activations)
        for start in range(0, rows, step):
            fill(planes, start, self._on_device(stored[start : start + step]))
        return planes if len(shape) == 2 else planes.stacked(shape[0])

    def _on_device(self, stored: npt.NDArray[np.uint8]) -> torch.Tensor:
        """The bytes on the device that repacks them."""
        raw = from_map(stored)
        return raw if self._upload is None else self._upload(raw)


class _Upload:
    """Two pinned buffers: while one is read by the device, the host fills the other."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers = [torch.empty(0, dtype=torch.uint8) for _ in range(2)]
        self._read = [torch.cuda.Event() for _ in range(2)]
        self._turn = 0

    def __call__(self, raw: torch.Tensor) -> torch.Tensor:
        """A copy of ``raw`` on the device, in the order of its stream."""
        turn = self._turn = 1 - self._turn
        self._read[turn].synchronize()
        if self._buffers[turn].numel() < raw.numel():
            self._buffers[turn] = torch.empty(raw.numel(), dtype=torch.uint8, pin_memory=True)
        staged = self._buffers[turn][: raw.numel()].view(raw.shape)
        staged.copy_(raw)
        uploaded = staged.to(self.device, non_blocking=True)
        self._read[turn].record()
        return uploaded
