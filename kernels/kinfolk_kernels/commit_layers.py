"""Commits of several layers in one launch.

They wait for the same rows and not for each other, and are short: 96 launches, of which each begins
when the one before has ended, took three times as long as the bytes (``benchmarks/NOTES.md``).
"""

# mypy: ignore-errors

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
import triton
import triton.language as tl

LAYERS_OF_LAUNCH = 8
"""Most layers of a launch, whose kernel has arguments for as many."""

T = TypeVar("T")


@triton.jit
def of_layer(pointers, SEVERAL: tl.constexpr):
    """The pointer of a program's layer, among LAYERS_OF_LAUNCH."""
    found = pointers[0]
    if SEVERAL:
        for i in tl.static_range(1, len(pointers)):
            found = tl.where(tl.program_id(2) == i, pointers[i], found)
    return found


def by_launch(layers: Sequence[T]) -> Iterator[Sequence[T]]:
    """The layers of each launch."""
    for first in range(0, len(layers), LAYERS_OF_LAUNCH):
        yield layers[first : first + LAYERS_OF_LAUNCH]


def pointers_of(name: str, tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """The arguments ``name0``, ``name1`` … of a launch; those of no layer repeat the first."""
    return {f"{name}{i}": tensors[i if i < len(tensors) else 0] for i in range(LAYERS_OF_LAUNCH)}
