"""A small shape with every kind of tensor, quick to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinfolk.convert.hybrid.keys import metadata
from kinfolk.convert.hybrid.shape import HybridShape, interval_layers
from kinfolk.convert.hybrid.tensors import dense_feed_forward, tensors
from kinfolk.descriptors import ModelOutline, ReleasedShape, VocabularyOutline
from kinfolk.synth.plan import SynthPlan, plan_synthetic
from kinfolk.synth.write import write_synthetic
from kinfolk_qwen35.family import Qwen35
from kinfolk_qwen35.shapes import PUBLISHED

VOCABULARY = VocabularyOutline(
    size=1024,
    pre="qwen35",
    first_special=1000,
    specials=(("<|end|>", True), ("<think>", False)),
    eos="<|end|>",
    padding="<|end|>",
    chat_template="{{ messages }}",
)


def outline(layers: int) -> ModelOutline:
    shape = HybridShape(
        vocabulary=VOCABULARY.size,
        hidden=256,
        context=4096,
        heads=4,
        kv_heads=2,
        head_dim=64,
        rotary=16,
        rope_base=1e6,
        key_heads=2,
        value_heads=4,
        key_dim=64,
        value_dim=64,
        linear=interval_layers(layers),
    )
    recipes = tensors(shape, dense_feed_forward(256, 512))
    return ModelOutline(
        metadata(shape, {"feed_forward_length": 512}),
        tuple((recipe.name, recipe.shape) for recipe in recipes),
        group=2,
        ranges={"ssm_a": (-1.5, -0.05), "ssm_dt.bias": (-4.0, -1.0)},
    )


@pytest.fixture(scope="session")
def family() -> Qwen35:
    return Qwen35()


@pytest.fixture(scope="session")
def small() -> ReleasedShape:
    return ReleasedShape("small", "qwen35", 4, outline, VOCABULARY, {"published": PUBLISHED})


@pytest.fixture(scope="session")
def small_with() -> Callable[..., ReleasedShape]:
    """``small_with(*tensors)``: a shape of just these tensors."""

    def make(*extra: tuple[str, tuple[int, ...]]) -> ReleasedShape:
        return ReleasedShape(
            "experts", "qwen35", 1, lambda layers: ModelOutline({}, extra), VOCABULARY, {}
        )

    return make


@pytest.fixture
def write(tmp_path) -> Callable[..., Path]:
    """``write(plan)``: the file of a plan."""

    def run(plan: SynthPlan | ReleasedShape, name: str = "model.gguf", **options: Any) -> Path:
        if isinstance(plan, ReleasedShape):
            plan = plan_synthetic(plan)
        write_synthetic(plan, tmp_path / name, **options)
        return tmp_path / name

    return run
