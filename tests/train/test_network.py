"""The trained forward against plain implementations that share no code with it."""

from __future__ import annotations

import pytest
import torch
from dflash_reference import Reference, Shape
from dflash_training import Trainer

from kinfolk.train.blocks import blocks_at
from kinfolk.train.dflash.shape import EPS, ROPE_BASE
from kinfolk.train.texts import Text

WINDOWS = {"all full": None, "windowed, then full": 8}
BOUND = 2e-4
"""Logits of about 10 in float32; sums are in another order."""


def plain_shape(shape):
    return Shape(
        windows=shape.windows,
        causal=tuple(window is not None for window in shape.windows),
        width=shape.width,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        dim=shape.head_dim,
        ff=shape.feed_forward,
        vocabulary=shape.vocabulary,
        feature_layers=shape.feature_layers,
        block=shape.block,
        mask=shape.mask_token,
        theta=ROPE_BASE,
        eps=EPS,
    )


@pytest.fixture(params=WINDOWS.values(), ids=WINDOWS)
def drafter(request, make):
    """A drafter with norms that are not trivial."""
    found = make(window=request.param, layers=3)
    generator = torch.Generator().manual_seed(3)
    for name, tensor in found.parameters.items():
        if "norm" in name:
            found.parameters[name].data *= 1 + 0.2 * torch.randn(tensor.shape, generator=generator)
    return found


@pytest.fixture
def text():
    generator = torch.Generator().manual_seed(1)
    return Text(tuple(torch.randint(0, 700, (30,), generator=generator).tolist()), first=4)


def tables(drafter):
    vocabulary = torch.arange(drafter.shape.vocabulary)
    return drafter.target.embed(vocabulary), drafter.target.head


@torch.no_grad()
def test_every_block_has_the_logits_of_the_plain_drafter(drafter, text):
    anchors = torch.tensor([4, 11, 12, 25])
    blocks = blocks_at(text, anchors, drafter.shape.block, 7.0)
    every = torch.ones_like(blocks.labels, dtype=torch.bool)
    found = drafter.logits(text, blocks, every).view(*blocks.labels.shape, -1)[:, 1:]
    features = drafter.target.features(text)
    for n, anchor in enumerate(anchors.tolist()):
        weights = {name: tensor.detach() for name, tensor in drafter.parameters.items()}
        plain = Reference(plain_shape(drafter.shape), weights, *tables(drafter))
        plain.extend(features[:anchor])
        expected = plain.logits(text.tokens[anchor])
        torch.testing.assert_close(found[n], expected, atol=BOUND, rtol=BOUND)


def test_the_loss_of_all_blocks_and_its_gradient_are_those_of_the_definition(drafter, text):
    """The definition puts all blocks of a text in one row of queries, with one element-wise mask.
    It weighs all rows alike, as a decay without end does."""
    shape = drafter.shape
    blocks = blocks_at(text, torch.arange(4, 29), shape.block, 1e12)
    loss = drafter.loss(text, blocks) / blocks.weight
    loss.backward()
    features = drafter.target.features(text)
    plain = Trainer(plain_shape(shape), features, list(text.tokens), *tables(drafter), first=4)
    plain.w = {
        name: tensor.detach().clone().requires_grad_()
        for name, tensor in drafter.parameters.items()
    }
    expected = plain.loss()
    expected.backward()
    torch.testing.assert_close(loss, expected, atol=1e-5, rtol=1e-5)
    for name, tensor in drafter.parameters.items():
        error = (tensor.grad - plain.w[name].grad).norm() / plain.w[name].grad.norm()
        assert error < 1e-4, name
