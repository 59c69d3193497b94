"""Small models and texts to train drafters with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kinfolk.engine.loading import LoadedModel, load_model
from kinfolk.registry import Registry
from kinfolk.settings import load_settings
from kinfolk.train.dflash.drafter import TrainedDFlash
from kinfolk.train.dflash.shape import DrafterShape, choose_shape
from kinfolk.train.target import FrozenTarget
from kinfolk.train.texts import Text


@pytest.fixture(scope="session")
def registry() -> Registry:
    return Registry.discover(load_settings())


@pytest.fixture(scope="session")
def load_case(cases: Path, registry: Registry) -> Callable[..., LoadedModel]:
    """``load_case(case)``: the small model of a reference case."""

    def load(case: str = "qwen35", **settings: Any) -> LoadedModel:
        options = {"device": "cpu", "dtype": "f32", "context": 512, "slots": 1, **settings}
        return load_model(cases / f"{case}.gguf", load_settings(**options), registry)

    return load


@pytest.fixture
def make(load_case) -> Callable[..., TrainedDFlash]:
    """``make(anchors=, seed=, **shape)``: an untrained drafter for the small hybrid model."""

    def build(*, anchors: int = 16, seed: int = 0, kept_bytes: int = 1 << 20, **shape: Any):
        loaded = load_case()
        chosen = small_shape(loaded, **shape)
        target = FrozenTarget(loaded, chosen.feature_layers, kept_bytes=kept_bytes)
        return TrainedDFlash(chosen, target, anchors=anchors, seed=seed)

    return build


def small_shape(loaded: LoadedModel, **changes: Any) -> DrafterShape:
    options = {"block": 4, "layers": 2, "head_dim": 16, "mask_token": 767, **changes}
    vocabulary = loaded.config.vocabulary
    return choose_shape(loaded.config, vocabulary=vocabulary, **options)


@pytest.fixture
def texts() -> list[Text]:
    """Six texts that can be learned: a random sequence of 8 tokens, repeated."""
    generator = torch.Generator().manual_seed(5)
    words = [torch.randperm(700, generator=generator)[:8].tolist() for _ in range(6)]
    return [Text(tuple((word * 8)[:48]), first=9) for word in words]
