"""The shape that is chosen for a target."""

from __future__ import annotations

import pytest

from kinfolk.config import ModelConfig
from kinfolk.train.dflash.shape import choose_shape


def target(width, layers):
    return ModelConfig(
        architecture="some",
        layers=layers,
        width=width,
        vocabulary=1000,
        context=4096,
        norm_eps=1e-6,
    )


def shape_for(width, layers, **options):
    options = {"mask_token": 999, "vocabulary": 1000, "block": 16, **options}
    return choose_shape(target(width, layers), **options)


def test_a_large_target_gets_the_shape_of_released_drafters():
    shape = shape_for(5120, 64, window=2048)
    assert (shape.heads, shape.kv_heads, shape.head_dim) == (32, 8, 128)
    assert shape.feature_layers == (1, 16, 31, 46, 61)
    assert shape.windows == (2048, 2048, 2048, 2048, None)


@pytest.mark.parametrize("layers", range(1, 12))
@pytest.mark.parametrize("width", [32, 64, 96, 512])
def test_any_target_gets_sizes_that_fit_each_other(width, layers):
    shape = shape_for(width, layers)
    assert shape.heads % shape.kv_heads == 0
    assert len(set(shape.feature_layers)) == len(shape.feature_layers) >= 1
    assert all(0 <= layer < layers for layer in shape.feature_layers)
    assert shape.tensors()["fc.weight"] == (width, len(shape.feature_layers) * width)


@pytest.mark.parametrize(("block", "gamma"), [(16, 7), (10, 5), (8, 4)])
def test_the_decay_of_the_loss_is_the_published_one(block, gamma):
    assert shape_for(512, 24, block=block).gamma == gamma
