"""The residual stream between layers, with a term that is still to be added."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kinfolk.nn.decoder import Decoder, PreNormLayer
from kinfolk.nn.norm import NormGroup, RMSNorm
from kinfolk.nn.residual import Normed, Residual
from kinfolk.nn.sandwich import Sandwich, SandwichLayer

WIDTH, VOCABULARY = 4, 9


class Mixer:
    """Multiplies; its trace is what it has seen."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x, step):
        return x * self.factor, x

    def commit(self, trace, kept, view):
        pass


class Halving(PreNormLayer):
    """A third-party layer, which leaves no branch pending."""

    def __call__(self, stream, step):
        x = stream.tensor()
        mixed, trace = self.mixer(self.mixer_norm(x), step)
        x = x + mixed / 2
        return Residual(x + self.feed_forward(self.feed_norm(x)) / 2), trace


@pytest.fixture
def weights():
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator)


@pytest.fixture
def norm(context, weights):
    return lambda dtype=torch.float32: RMSNorm(context, weights(WIDTH), 1e-5, dtype)


def plain(layer, x):
    """The result of this file's layers, computed one step after the other."""
    if isinstance(layer, SandwichLayer):
        x = x + layer.after(layer.mixer(layer.before(x), None)[0])
        for branch in layer.branches:
            x = branch(Residual(x), None).tensor()
        return x if layer.scale is None else x * layer.scale
    share = 0.5 if isinstance(layer, Halving) else 1.0
    x = x + share * layer.mixer(layer.mixer_norm(x), None)[0]
    return x + share * layer.feed_forward(layer.feed_norm(x))


def tanh_branch(stream, step):
    x = stream.tensor()
    return Residual(x, x.tanh() + 1.0)


@pytest.fixture
def layers(norm, weights):
    parts = (norm(), Mixer(0.7), norm(), torch.sin)
    return [
        PreNormLayer(*parts),
        Halving(*parts),
        SandwichLayer(norm(), Mixer(0.3), norm(), [Sandwich(norm(), torch.cos, norm())]),
        SandwichLayer(norm(), Mixer(0.4), norm(), [tanh_branch], torch.tensor([0.6])),
        PreNormLayer(*parts),
        SandwichLayer(
            norm(),
            Mixer(0.5),
            norm(),
            [Sandwich(norm(), torch.sin, norm())],
            torch.tensor([1.5]),
        ),
    ]


def test_layers_of_all_kinds_follow_one_another(context, norm, layers, weights):
    """Layers that leave a branch pending, and layers that do not."""
    table = weights(VOCABULARY, WIDTH)
    tables = {"embedding": table, "head": torch.eye(9, 4)}
    model = Decoder(context, layers=layers, norm=norm(), **tables)
    alone = model.forward(SimpleNamespace(tokens=torch.tensor([2, 5])), None)
    model.features(range(len(layers)))
    forward = model.forward(SimpleNamespace(tokens=torch.tensor([2, 5])), None)
    x = table[[2, 5]]
    for index, features in enumerate(forward.features.split(WIDTH, 1)):
        x = plain(layers[index], x)
        first = Decoder(context, layers=layers[: index + 1], norm=norm(), **tables)
        hidden = first.forward(SimpleNamespace(tokens=torch.tensor([2, 5])), None).hidden
        torch.testing.assert_close(hidden, x, rtol=1e-5, atol=1e-5)
        assert torch.equal(features, hidden.bfloat16())
    torch.testing.assert_close(forward.hidden, x, rtol=1e-5, atol=1e-5)
    assert torch.equal(alone.hidden, forward.hidden)


def test_a_layer_called_by_itself_gives_the_stream(layers, weights):
    x = weights(3, WIDTH)
    for layer in layers:
        stream, _ = layer(Residual(x), None)
        torch.testing.assert_close(stream.tensor(), plain(layer, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_the_norm_of_a_stream_adds_what_is_left(norm, weights, after, scaled):
    stream = Residual(
        weights(3, WIDTH),
        weights(3, WIDTH),
        norm() if after else None,
        torch.tensor([0.3]) if scaled else None,
    )
    reader = norm()
    total, normed = stream.normed(reader)
    branch = stream.after(stream.branch) if after else stream.branch
    expected = (stream.total + branch) * (0.3 if scaled else 1.0)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(stream.tensor(), expected)
    torch.testing.assert_close(normed, reader(expected))


def test_norms_of_a_stream_add_two_normed_rows(norm, weights):
    parts = (Normed(weights(3, WIDTH), norm()), Normed(weights(3, WIDTH), norm()))
    stream = Residual(weights(3, WIDTH), parts, norm(), torch.tensor([0.3]))
    readers = norm(), norm()
    total, *normed = stream.normed(NormGroup(*readers))
    first, second = (part.norm(part.rows) for part in parts)
    expected = (stream.total + stream.after(first + second)) * 0.3
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(stream.tensor(), expected)
    for found, reader in zip(normed, readers, strict=True):
        torch.testing.assert_close(found, reader(expected))


def test_norms_of_a_stream_without_a_branch(norm, weights):
    x, readers = weights(3, WIDTH), (norm(), norm(torch.float16))
    total, *normed = Residual(x).normed(NormGroup(*readers))
    assert torch.equal(total, x)
    for result, reader in zip(normed, readers, strict=True):
        assert torch.equal(result, reader(x))


def test_norms_of_one_sum_have_one_eps(context, norm):
    with pytest.raises(ValueError, match="norms of one sum have eps"):
        NormGroup(norm(), RMSNorm(context, None, 2e-5))
