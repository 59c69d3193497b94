"""Features: which layer and which row they belong to, and what asking for them costs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from kinfolk.engine.loading import LoadedModel
from kinfolk.nn.decoder import Decoder
from kinfolk.nn.norm import RMSNorm
from kinfolk.nn.residual import Residual
from kinfolk.plans import Codec, Paged, PoolRule, Section, SlotMapping, StateLimits, StatePlan
from kinfolk.sched.plan import Item, ItemKind
from kinfolk.testing.driver import Driver

LAYERS, VOCABULARY = 8, 200
TREE = (-1, 0, 0, 1, 2, 2)
ASKED = [LAYERS - 3, 0, LAYERS - 1]
VALUES = torch.tensor([63.0, 1.0, 255.0])
"""Sums of 2^i up to these layers; 255 is the largest odd number of 8 bits, which bfloat16 has."""


class Adds:
    """Layer ``index`` adds 2^index to column 0. ``way`` is how: it adds the branch itself, leaves
    it pending, or changes the stream that it was given in place."""

    def __init__(self, index, way, norm):
        self.amount, self.way, self.norm = torch.tensor([2.0**index, 0, 0, 0]), way, norm

    def __call__(self, stream, step):
        if self.way == "adds":
            return Residual(stream.tensor() + self.amount), None
        if self.way == "in place":
            return Residual(stream.tensor().add_(self.amount)), None
        x, _ = stream.normed(self.norm)
        return Residual(x, self.amount.expand_as(x)), None

    def commit(self, trace, kept, view):
        """There is no state."""


@pytest.fixture
def decoder(context):
    """``decoder(layers)``: column 1 of an embedding is the token."""
    embedding = torch.zeros(VOCABULARY, 4)
    embedding[:, 1] = torch.arange(VOCABULARY)
    norm = RMSNorm(context, torch.tensor([1.0, 2.0, 3.0, 4.0]), 1e-5)
    head = torch.eye(VOCABULARY, 4)

    def make(layers):
        return Decoder(context, embedding=embedding, layers=layers, norm=norm, head=head)

    return make


@pytest.fixture(params=["adds", "pending", "in place", "mixed"])
def model(context, decoder, request):
    ways = {"mixed": ["pending", "adds", "in place", "pending"] * 2}
    ways = ways.get(request.param, [request.param] * LAYERS)
    norm = RMSNorm(context, None, 1e-5)
    return decoder([Adds(index, way, norm) for index, way in enumerate(ways)])


def batch(*tokens):
    return SimpleNamespace(tokens=torch.tensor(tokens))


def drive(model, context, replays):
    plan = StatePlan((Paged((Section("k", 1, 8, Codec("f32")),)),))
    hooks = SimpleNamespace(
        is_overruled=lambda hook: False, build_graph=lambda model, shape: model.forward
    )
    loaded = LoadedModel(
        file=None,
        family=None,
        config=None,
        info=None,
        model=model,
        hooks=hooks,
        ops=context.ops,
        step_ops=None,
        plan=plan,
        limits=StateLimits(slots=3, checkpoints=0, blocks=(20,), context=300, step_rows=128),
        mapping=SlotMapping((PoolRule(None, 0, 0),)),
        device=context.device,
        dtype=context.dtype,
        slice_rows=128,
    )
    return Driver(loaded, replays=replays)


def assert_rows(features, tokens):
    """Each part has the sum of its layer in column 0, and the row's token in column 1."""
    assert features.dtype == torch.bfloat16
    assert features.shape == (len(tokens), 4 * len(ASKED))
    parts = features.float().view(len(tokens), len(ASKED), 4)
    assert torch.equal(parts[:, :, 0], VALUES.expand(len(tokens), -1))
    assert torch.equal(parts[:, :, 1], torch.tensor(tokens).float()[:, None].expand(-1, len(ASKED)))


@pytest.mark.parametrize("replays", [False, True], ids=["eager", "replays"])
def test_features_tell_their_layer_and_row_in_every_step(model, context, replays):
    """Slices, decoding beside a slice, a chain and a tree."""
    model.features(ASKED)
    driver = drive(model, context, replays)
    first, second = driver.open(200), driver.open(200)
    text = list(range(100))
    for size in (70, 7):
        start = driver.kv_cache.tables.length(first)
        part = text[start : start + size]
        driver.feed({first: part})
        assert_rows(driver.features()[0], part)
    items = [
        Item(first, "", ItemKind.DECODE, (text[77],), 77),
        Item(second, "", ItemKind.PREFILL, tuple(text[:21]), 0),
    ]
    driver.step(items)
    for item, features in zip(items, driver.features(), strict=True):
        assert_rows(features, item.tokens)
    driver.feed({first: [5], second: [6]}, rows=1)
    for token, features in zip((5, 6), driver.features(), strict=True):
        assert_rows(features, [token])
    drafts = {first: (text[7:10], None), second: (text[90:96], TREE)}
    driver.draft(drafts)
    for (tokens, _), features in zip(drafts.values(), driver.features(), strict=True):
        assert_rows(features, tokens)


def test_features_leave_the_hidden_states_as_they_are(model):
    tokens = batch(*range(9))
    alone = model.forward(tokens, None)
    assert alone.features is None
    model.features(range(LAYERS), final=True)
    found = model.forward(tokens, None)
    assert torch.equal(found.hidden, alone.hidden)
    assert torch.equal(
        model.logits(model.norm(found.hidden)), model.logits(model.norm(alone.hidden))
    )


def test_the_normed_output_stands_behind_the_layers(model):
    model.features([LAYERS - 1], final=True)
    found = model.forward(batch(3, 4), None)
    normed = model.norm(found.hidden)
    assert torch.equal(found.features, torch.cat((found.hidden, normed), 1).bfloat16())
    model.features([], final=True)
    assert torch.equal(model.forward(batch(3, 4), None).features, normed.bfloat16())


def test_features_of_one_step_outlive_the_next(model):
    """A model keeps no tensors: the features of a step are its own."""
    model.features(ASKED)
    first = model.forward(batch(3, 4), None).features
    second = model.forward(batch(5, 6), None).features
    assert_rows(first, [3, 4])
    assert_rows(second, [5, 6])


def test_a_layer_that_passes_the_stream_on_has_the_features_of_the_one_before(context, decoder):
    class Passes(Adds):
        def __call__(self, stream, step):
            return stream, None

    norm = RMSNorm(context, None, 1e-5)
    kinds = (Adds, Passes, Passes, Adds, Passes)
    model = decoder([kind(index, "pending", norm) for index, kind in enumerate(kinds)])
    model.features([4, 0, 2, 3, 1])
    features = model.forward(batch(7), None).features.float().view(5, 4)
    assert features[:, 0].tolist() == [9, 1, 1, 9, 1]


def test_a_layer_that_puts_another_branch_on_the_stream_does_not_change_features(context, decoder):
    class Replaces(Adds):
        def __call__(self, stream, step):
            return replace(stream, branch=stream.branch + self.amount), None

    norm = RMSNorm(context, None, 1e-5)
    kinds = (Adds, Replaces, Adds)
    model = decoder([kind(index, "pending", norm) for index, kind in enumerate(kinds)])
    model.features([0, 1, 2])
    features = model.forward(batch(7), None).features.float().view(3, 4)
    assert features[:, 0].tolist() == [1, 3, 7]


def test_a_tap_adds_no_second_sum(context, decoder, monkeypatch):
    """A pending branch is added by the next norm only, and by the decoder behind the last layer."""
    norm, sums = RMSNorm(context, None, 1e-5), []
    model = decoder([Adds(index, "pending", norm) for index in range(4)])
    alone, fused = Residual.tensor, norm.add_rms_norm
    norm.add_rms_norm = lambda *operands: sums.append("fused") or fused(*operands)
    monkeypatch.setattr(Residual, "tensor", lambda stream: sums.append("alone") or alone(stream))
    model.features([0, 1, 3])
    features = model.forward(batch(1, 2), None).features
    assert sums == ["fused"] * 3 + ["alone"]
    assert features.view(2, 3, 4)[:, :, 0].tolist() == [[1, 3, 15]] * 2


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([0, 8], "layer 8 has no features: the model has 8 layers"),
        ([-1], "layer -1 has no features: the model has 8 layers"),
        ([2, 0, 2], "features of layer 2 are asked for twice"),
    ],
)
def test_a_layer_that_is_not_there_or_named_twice_is_refused(model, layers, message):
    with pytest.raises(ValueError, match=message):
        model.features(layers)
