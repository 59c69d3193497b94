"""Drafters of random weights beside the plain implementation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from dflash_bench import EXACT, SHAPES, Bench, TableTarget, random_features, write_drafter
from dflash_reference import Reference, Shape, random_tensors

from kinfolk.plans import Codec


@dataclass
class Pair:
    """The drafter and the plain implementation of the same weights."""

    bench: Bench
    reference: Reference
    shape: Shape
    target: TableTarget

    def feed(self, lease: Any, features: torch.Tensor) -> None:
        self.bench.extend({lease: features})
        self.reference.extend(features)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Pair]:
    """``make(shape, layout, config…)``: a pair; keywords make a drafter with a mistake."""

    def pair(
        shape: Shape, layout: str = "B", *, codec: Codec = EXACT, target: Any = None, **config: Any
    ) -> Pair:
        tensors = random_tensors(shape)
        path = write_drafter(tmp_path / f"{layout}.gguf", shape, tensors, layout)
        target = target or TableTarget(shape)
        reference = Reference(shape, tensors, target.table, target.head)
        return Pair(Bench(path, target, shape, codec=codec, **config), reference, shape, target)

    return pair


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def shape(request: pytest.FixtureRequest) -> Shape:
    found: Shape = request.param
    return found


@pytest.fixture
def features() -> Callable[..., torch.Tensor]:
    return random_features
