"""Segments: several matrices that read the same rows, as the arguments of one launch.

A launch that reads only a few megabytes loses most of its time at its start and end. So one launch
serves several matrices: the first programs belong to the first matrix, the next to the second, and
each runs the code for the format of its matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from kinfolk_kernels.planes import LAYOUTS, Planes

MAX_MATRICES = 4
"""Most matrices of a launch."""

NOTHING = -1
"""The format of an unused segment."""

NONE = tl.constexpr(NOTHING)
"""``NOTHING`` for kernels."""

ARGUMENTS = [
    [f"{name}{i}" for name in ("q", "high", "scales", "supers", "y", "n", "end")]
    for i in range(MAX_MATRICES)
]

FREE = [f"{name}{i}" for name in ("n", "end") for i in range(MAX_MATRICES)]
"""Integer arguments that kernels are not specialised for."""


@dataclass(frozen=True, slots=True)
class Segments:
    """``arguments`` of a launch by name: planes, results, rows, and the end of the programs of each
    segment. ``constants``: the formats F0 to F3. ``programs``: their number."""

    arguments: dict[str, Any]
    constants: dict[str, Any]
    programs: int

    @staticmethod
    def make(
        matrices: Sequence[Planes],
        outs: Sequence[torch.Tensor],
        programs: Callable[[Planes], int],
    ) -> Segments:
        """The segments of ``matrices`` and their results outs [M, N], contiguous; ``programs``
        returns the number of programs of a matrix.

        The largest matrix comes first, so that small ones fill the device at its end.
        """
        order = by_size(matrices)
        arguments: dict[str, Any] = {}
        constants: dict[str, Any] = {}
        end = 0
        for place, names in enumerate(ARGUMENTS):
            there = place < len(order)
            which = order[place if there else 0]
            planes = matrices[which]
            q, high, scales = planes.q, planes.high, planes.scales
            end += programs(planes) if there else 0
            values = (
                q,
                q if high is None else high,
                q if scales is None else scales,
                planes.supers,
                outs[which],
                planes.rows,
                end,
            )
            arguments.update(zip(names, values, strict=True))
            constants[f"F{place}"] = LAYOUTS[planes.format].number if there else NOTHING
        return Segments(arguments, constants, end)


def by_size(matrices: Sequence[Planes]) -> list[int]:
    """The places of the matrices, of the largest first."""
    return sorted(range(len(matrices)), key=lambda i: -_size(matrices[i]))


def _size(planes: Planes) -> float:
    """Bytes of a column of a matrix."""
    layout = LAYOUTS[planes.format]
    return planes.rows * layout.nbytes / layout.block


_COUNTERS: dict[torch.device, torch.Tensor] = {}


def counters(device: torch.device, programs: int) -> torch.Tensor:
    """Counters int32, one for each of ``programs``, of the programs that have finished their part
    of a shared tile.

    They are zero before and after every launch. Only one stream at a time may use them.
    """
    zeros = _COUNTERS.get(device)
    if zeros is None or zeros.shape[0] < programs:
        zeros = torch.zeros(max(programs, 4096), dtype=torch.int32, device=device)
        _COUNTERS[device] = zeros
    return zeros
