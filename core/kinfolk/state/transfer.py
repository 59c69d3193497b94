"""Several small arrays that go to the device together: one pinned buffer, one copy."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import numpy.typing as npt
import torch

from kinfolk.torch_dtypes import ARRAY_DTYPES

ARRAY_ALIGNMENT_BYTES = 64
"""Arrays start at multiples of this many bytes, which kernels are compiled for."""

Fields = Mapping[str, tuple[str, tuple[int, ...]]]
"""Type and shape of each array by name."""


_Stage = tuple[torch.Tensor, npt.NDArray[np.uint8], dict[str, npt.NDArray[np.generic]]]
"""A buffer of the host, its bytes, and its arrays by name."""


class Transfer:
    """Arrays by name, ``host`` to be filled and ``device`` to be read after :meth:`upload`.

    On the CPU both are the same memory. The host's arrays may be filled again once whatever waits
    for the device has seen the copy done; with ``stages`` of them, after that many turns less one.
    """

    def __init__(self, fields: Fields, device: torch.device, stages: int = 1) -> None:
        starts, size = {}, 0
        for name, (kind, shape) in fields.items():
            starts[name] = size
            nbytes = prod(shape) * ARRAY_DTYPES[kind].itemsize
            size += -(-nbytes // ARRAY_ALIGNMENT_BYTES) * ARRAY_ALIGNMENT_BYTES
        cuda = device.type == "cuda"
        buffers = [
            torch.empty(size, dtype=torch.uint8, pin_memory=cuda)
            for _ in range(stages if cuda else 1)
        ]
        self._there = torch.empty_like(buffers[0], device=device) if cuda else buffers[0]
        # One slice an array, of the buffer in each type: a prompt's step makes buffers of its own.
        self._stages: list[_Stage] = []
        for buffer in buffers:
            content = buffer.numpy()
            arrays = {kind: content.view(kind) for kind in ARRAY_DTYPES}
            host = {
                name: arrays[kind][_span(starts[name], kind, shape)].reshape(shape)
                for name, (kind, shape) in fields.items()
            }
            self._stages.append((buffer, content, host))
        tensors = {kind: self._there.view(dtype) for kind, dtype in ARRAY_DTYPES.items()}
        self.device: dict[str, torch.Tensor] = {}
        for name, (kind, shape) in fields.items():
            flat = tensors[kind][_span(starts[name], kind, shape)]
            self.device[name] = flat if len(shape) == 1 else flat.view(shape)
        self.turn()

    @property
    def stages(self) -> int:
        """How many of the host's arrays there are; one on the CPU."""
        return len(self._stages)

    def turn(self) -> None:
        """Go on to the next of the host's arrays, which hold what they held a round ago."""
        self._stages.append(self._stages.pop(0))
        self._staged, self.bytes, self.host = self._stages[0]

    def upload(self) -> None:
        """Copy everything, in the order of the current stream; the host does not wait."""
        if self._there is not self._staged:
            self._there.copy_(self._staged, non_blocking=True)


def _span(start: int, kind: str, shape: tuple[int, ...]) -> slice:
    """An array's elements, if it begins ``start`` bytes behind the first of its type."""
    first = start // ARRAY_DTYPES[kind].itemsize
    return slice(first, first + prod(shape))
