"""Several matrices that read the same rows, as the arguments of one launch.

A launch of a few megabytes loses more time at its start and its end than in between. So its
programs are numbered through: the first ones belong to the first matrix, the next to the second,
each matrix with code of its own format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl

from kinfolk_kernels.planes import LAYOUTS, Planes

MAX_MATRICES = 4
"""Matrices in a launch."""

NOTHING = -1
"""Format of a segment that is not there."""

NONE = tl.constexpr(NOTHING)
"""The same in a kernel."""

ARGUMENTS = [
    [f"{name}{i}" for name in ("q", "high", "scales", "supers", "y", "n", "end")]
    for i in range(MAX_MATRICES)
]

FREE = [f"{name}{i}" for name in ("n", "end") for i in range(MAX_MATRICES)]
"""Numbers that kernels are not specialised for."""


@dataclass(frozen=True, slots=True)
class Segments:
    """``arguments`` by name: planes, results, rows and the number after the last program of each
    segment. ``constants``: the formats F0 to F3, and ``programs`` of all of them."""

    arguments: dict[str, Any]
    constants: dict[str, Any]
    programs: int

    @staticmethod
    def make(
        matrices: Sequence[Planes],
        outs: Sequence[torch.Tensor],
        programs: Callable[[Planes], int],
    ) -> Segments:
        """``programs`` of each matrix; outs [M, N] contiguous, in the order of the matrices.

        The largest comes first: the ends of the small ones are filled up by each other.
        """
        order = sorted(range(len(matrices)), key=lambda i: -_size(matrices[i]))
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


def _size(planes: Planes) -> float:
    """Bytes of a column."""
    layout = LAYOUTS[planes.format]
    return planes.rows * layout.nbytes / layout.block


_COUNTERS: dict[torch.device, torch.Tensor] = {}


def counters(device: torch.device, programs: int) -> torch.Tensor:
    """Zeros, one a group of rows, for programs that share columns to say that they have ended.

    Every launch leaves them zero. One stream at a time uses them.
    """
    found = _COUNTERS.get(device)
    if found is None or found.shape[0] < programs:
        found = torch.zeros(max(programs, 4096), dtype=torch.int32, device=device)
        _COUNTERS[device] = found
    return found
