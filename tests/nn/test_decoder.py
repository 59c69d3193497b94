"""The decoder around its layers: residual sums, logits and traces."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from kinfolk.nn.decoder import Decoder, PreNormLayer
from kinfolk.nn.mlp import GatedMLP
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.residual import Residual

WIDTH, VOCABULARY = 4, 9


class Adds:
    """A layer that adds ``amount``; its trace is ``trace``."""

    def __init__(self, amount, trace=None):
        self.amount, self.trace, self.committed = amount, trace, []

    def __call__(self, stream, step):
        return Residual(stream.tensor() + self.amount), self.trace

    def commit(self, trace, kept, view):
        self.committed.append((trace, kept, view))


@pytest.fixture
def decoder(context):
    """``decoder(layers, **options)``: zero embeddings, so that only layers count."""

    def make(layers, **options):
        values = {"embedding": torch.zeros(VOCABULARY, WIDTH), "head": torch.eye(9, 4), **options}
        return Decoder(context, layers=layers, norm=RMSNorm(context, None, 0.0), **values)

    return make


def batch(*tokens):
    return SimpleNamespace(tokens=torch.tensor(tokens))


def test_the_embedding_is_scaled(decoder):
    table = torch.arange(36.0).view(VOCABULARY, WIDTH)
    model = decoder([], embedding=table, embedding_scale=0.5)
    assert torch.equal(model.forward(batch(8, 0), None).hidden, table[[8, 0]] / 2)


def test_logits_are_normed_float32_and_capped(decoder):
    hidden = torch.tensor([[3.0, 0, 0, 0], [0, 0, -5, 0]])
    model = decoder([])
    plain = model.logits(model.norm(hidden))
    assert plain.dtype == torch.float32
    assert plain.shape == (2, VOCABULARY)
    expected = torch.zeros(2, VOCABULARY)
    expected[0, 0], expected[1, 2] = 2, -2  # one of four numbers: the norm makes it sqrt(4)
    torch.testing.assert_close(plain, expected)
    model = decoder([], softcap=1.5)
    capped = model.logits(model.norm(hidden))
    torch.testing.assert_close(capped, 1.5 * (expected / 1.5).tanh())


def test_layers_with_a_trace_are_committed(decoder):
    layers = [Adds(1.0, trace="a"), Adds(1.0), Adds(1.0, trace="c")]
    model = decoder(layers)
    trace = model.forward(batch(1), None).trace
    model.commit(trace, "kept", "view")
    assert [layer.committed for layer in layers] == [
        [("a", "kept", "view")],
        [],
        [("c", "kept", "view")],
    ]


def test_a_layer_norms_before_and_adds_after(context):
    """x + mixer(norm(x)), then the same with the feed-forward part."""
    seen = []

    class Mixer(Adds):
        def __call__(self, x, step):
            seen.append(x)
            return torch.full_like(x, 10.0), "trace"

    def feed_forward(x):
        seen.append(x)
        return torch.full_like(x, 100.0)

    norm = RMSNorm(context, None, 0.0)
    layer = PreNormLayer(norm, Mixer(0), norm, feed_forward)
    x = torch.tensor([[2.0, -2, 2, -2]])
    stream, trace = layer(Residual(x), None)
    assert torch.equal(stream.tensor(), x + 110)
    assert trace == "trace"
    torch.testing.assert_close(seen[0], x / 2)
    torch.testing.assert_close(seen[1], (x + 10) / (x + 10).square().mean().sqrt())


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_a_gated_mlp_equals_float64(context, activation):
    generator = torch.Generator().manual_seed(0)
    gate, up, down, x = (
        torch.randn(*shape, generator=generator) for shape in ((12, 5), (12, 5), (5, 12), (3, 5))
    )
    found = GatedMLP(context, gate, up, down, activation)(x)
    g, u, d, rows = (tensor.double() for tensor in (gate, up, down, x))
    act = torch.nn.functional.silu if activation == "silu" else _gelu_tanh
    expected = (act(rows @ g.T) * (rows @ u.T)) @ d.T
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def _gelu_tanh(x):
    return torch.nn.functional.gelu(x, approximate="tanh")


def test_logits_of_a_quantised_head_are_rounded_to_no_narrow_type(context):
    context = replace(context, dtype=torch.bfloat16)
    head = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    packed = SimpleNamespace(dequantize=head.to)
    values = {"embedding": torch.zeros(9, 4), "layers": [], "norm": RMSNorm(context, None, 0.0)}
    hidden = torch.tensor([[0.3, -2.0, 1.7, 0.1]])
    exact = torch.nn.functional.rms_norm(hidden, (4,), eps=0.0) @ head.T
    model = Decoder(context, head=packed, **values)
    normed = model.norm(hidden)
    assert normed.dtype == torch.float32
    assert torch.allclose(model.logits(normed), exact, rtol=1e-5)
