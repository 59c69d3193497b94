"""The drafter against the plain implementation, over steps with a growing context."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from dflash_bench import CONTEXT, IN_LAYOUT_A, SHAPES, TableTarget, relative
from dflash_reference import Shape

from kinfolk.plans import Codec
from kinfolk.spec.dflash.config import BlockLayer

BOUND = 2e-5
STEPS = (7, 5, 1, 6, 20)
"""Rows of context that each step adds: windows of the shapes are crossed."""
TOLD_APART = 100
"""A mistake changes hidden states by at least so many times the bound."""


def worst(pair, features, shift=0):
    """The largest difference of hidden states over steps of one sequence."""
    lease, found = pair.bench.open(), 0.0
    for step, rows in enumerate(STEPS):
        pair.feed(lease, features(pair.shape, rows, seed=step))
        anchor = 11 + step
        hidden = pair.bench.hidden({lease: anchor})[0]
        found = max(found, relative(hidden, pair.reference.hidden(anchor)))
    return found


def test_hidden_states_are_those_of_the_plain_implementation(shape, make, features):
    assert worst(make(shape), features) <= BOUND


@pytest.mark.parametrize("shape", IN_LAYOUT_A.values(), ids=IN_LAYOUT_A)
def test_a_file_of_layout_a_gives_the_same(shape, make, features):
    assert worst(make(shape, "A"), features) <= BOUND


def test_proposals_are_the_best_logits_of_every_row(shape, make, features):
    pair = make(shape)
    lease = pair.bench.open()
    pair.feed(lease, features(shape, 23))
    proposals = pair.bench.draft({lease: 5})
    if shape.selector is None:
        logits = pair.reference.logits(5)
        scores, tokens = logits.log_softmax(-1).topk(8, -1)
    else:
        walked, scored = pair.reference.walk(5)
        tokens, scores = torch.tensor(walked), torch.tensor(scored)
    assert torch.equal(proposals.tokens[0], tokens)
    torch.testing.assert_close(proposals.scores[0], scores, rtol=0, atol=1e-4)
    assert proposals.parents is None


def test_a_block_without_context_attends_to_itself(make):
    pair = make(SHAPES["sliding, then full"])
    lease = pair.bench.open()
    hidden = pair.bench.hidden({lease: 3})[0]
    assert relative(hidden, pair.reference.hidden(3)) <= BOUND


def test_the_drafter_takes_the_targets_scale_and_softcap(make, features):
    """As of models whose embedding is multiplied and whose logits are capped."""
    shape = Shape(embedding_scale=8.0, softcap=3.0)
    target = TableTarget(shape, scale=8.0, softcap=3.0)
    pair = make(shape, target=target)
    lease = pair.bench.open()
    pair.feed(lease, features(shape, 9))
    proposals = pair.bench.draft({lease: 5})
    expected = pair.reference.logits(5).log_softmax(-1).topk(8, -1)
    assert torch.equal(proposals.tokens[0], expected.indices)
    torch.testing.assert_close(proposals.scores[0], expected.values, rtol=0, atol=1e-4)


@pytest.mark.parametrize("stated", [8.0, 73.5], ids=["stated", "of the file"])
def test_a_stated_embedding_scale_is_applied_once(stated, make, features):
    shape = Shape(embedding_scale=stated)
    pair = make(shape, target=TableTarget(shape, scale=8.0))
    assert worst(pair, features) <= BOUND


def test_a_softcap_of_the_file_is_applied_where_the_target_has_none(make, features):
    shape = Shape(softcap=2.0)
    pair = make(shape)
    lease = pair.bench.open()
    pair.feed(lease, features(shape, 9))
    scores = pair.bench.draft({lease: 5}).scores[0]
    expected = pair.reference.logits(5).log_softmax(-1).topk(8, -1).values
    torch.testing.assert_close(scores, expected, rtol=0, atol=1e-4)


def test_the_last_block_of_the_context_reads_no_rotation_beyond_it(make, features):
    pair = make(Shape())
    lease = pair.bench.open(CONTEXT + 16)
    pair.feed(lease, features(pair.shape, CONTEXT - 3))
    assert bool(pair.bench.draft({lease: 5}).scores.isfinite().all())


STORED = {
    Codec("f16"): 3e-3,
    Codec("bf16"): 3e-2,
    Codec("q8_0"): 3e-2,
    Codec("q8_0", "hadamard"): 3e-2,
    Codec("q4_0", "hadamard"): 0.4,
}


@pytest.mark.parametrize(("codec", "bound"), STORED.items(), ids=str)
def test_keys_and_values_are_stored_as_asked_for(codec, bound, make, features):
    pair = make(Shape((40, None), (True, False), dim=32), codec=codec)
    assert pair.bench.plan.state[0].section("k").codec == codec
    assert worst(pair, features) <= bound


# -- mistakes are seen ----------------------------------------------------------------------------


def layers(shape, **changes):
    return tuple(
        BlockLayer(window=window, causal=causal).model_copy(update=changes)
        for window, causal in zip(shape.windows, shape.causal, strict=True)
    )


def with_window(shape, by):
    return tuple(
        layer.model_copy(update={"window": layer.window and layer.window + by})
        for layer in layers(shape)
    )


SLIDING, GATED = SHAPES["sliding, then full"], SHAPES["gates of heads"]
MISTAKES = {
    "window one too small": (SLIDING, lambda c: {"layers": with_window(SLIDING, -1)}),
    "window one too large": (SLIDING, lambda c: {"layers": with_window(SLIDING, 1)}),
    "no windows": (SLIDING, lambda c: {"layers": layers(SLIDING, window=None)}),
    "sliding layers bidirectional": (SLIDING, lambda c: {"layers": layers(SLIDING, causal=False)}),
    "all layers causal": (SLIDING, lambda c: {"layers": layers(SLIDING, causal=True)}),
    "no norm of context": (GATED, lambda c: {"context_norm": False}),
    "norm of context": (Shape(), lambda c: {"context_norm": True}),
    "no norms of feature layers": (GATED, lambda c: {"feature_norms": False}),
    "no gates": (GATED, lambda c: {"gate": "none"}),
    "base of the rotation": (Shape(), lambda c: {"rope": c.rope.model_copy(update={"base": 2e4})}),
    "no yarn": (SHAPES["yarn"], lambda c: {"rope": c.rope.model_copy(update={"yarn": None})}),
    "yarn without its magnitude": (
        SHAPES["yarn"],
        lambda c: {
            "rope": c.rope.model_copy(
                update={"yarn": c.rope.yarn.model_copy(update={"magnitude": 1.0})}
            )
        },
    ),
    "scale of scores by yarn's factor": (
        SHAPES["yarn"], lambda c: {"attention_scale": 64.0**-2},
    ),
    "no convolutions": (SHAPES["convolutions"], lambda c: {"convolution": None}),
    "another eps": (Shape(), lambda c: {"norm_eps": 1e-2}),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_configuration_is_seen(name, make, features):
    shape, change = MISTAKES[name]
    right = make(shape)
    wrong = make(shape, **change(right.bench.plan.config))
    assert worst(wrong, features) >= TOLD_APART * BOUND


def in_other_order(shape, features):
    parts = features.split(shape.width, 1)
    return torch.cat(parts[::-1], 1)


def test_another_order_of_feature_layers_is_seen(make, features):
    pair = make(Shape())
    lease = pair.bench.open()
    rows = features(pair.shape, 20)
    pair.bench.extend({lease: in_other_order(pair.shape, rows)})
    pair.reference.extend(rows)
    hidden = pair.bench.hidden({lease: 3})[0]
    assert relative(hidden, pair.reference.hidden(3)) >= TOLD_APART * BOUND


def test_features_one_position_late_are_seen(make, features):
    pair = make(Shape())
    lease = pair.bench.open()
    rows = features(pair.shape, 20)
    pair.bench.extend({lease: rows.roll(1, 0)})
    pair.reference.extend(rows)
    hidden = pair.bench.hidden({lease: 3})[0]
    assert relative(hidden, pair.reference.hidden(3)) >= TOLD_APART * BOUND


def test_a_block_one_position_late_is_seen(make, features):
    pair = make(Shape())
    lease = pair.bench.open()
    pair.feed(lease, features(pair.shape, 20))
    block = pair.bench.block({lease: 3})
    late = replace(block, batch=replace(block.batch, positions=block.batch.positions + 1))
    with torch.inference_mode():
        hidden = pair.bench.drafter.hidden(late, pair.bench.state)
    assert relative(hidden, pair.reference.hidden(3)) >= TOLD_APART * BOUND


def test_a_missing_norm_of_fused_features_is_seen(make, features, monkeypatch):
    pair = make(Shape())
    monkeypatch.setattr(pair.bench.drafter.fused, "norm", lambda x: x)
    assert worst(pair, features) >= TOLD_APART * BOUND


def test_the_targets_own_norm_before_the_head_would_be_seen(make, features):
    """The norm of the tests' target answers zeros, and so would the logits."""
    pair = make(Shape())
    lease = pair.bench.open()
    pair.feed(lease, features(pair.shape, 9))
    assert float(pair.bench.draft({lease: 3}).scores[0, :, 0].min()) > -4.6
