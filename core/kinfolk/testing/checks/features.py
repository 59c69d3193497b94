"""Checks of features: the residual stream after layers, which drafters read."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import torch

from kinfolk.sched.plan import Item, ItemKind
from kinfolk.state.chunks import SlotLease
from kinfolk.testing.checks.drafts import path_to
from kinfolk.testing.driver import Driver
from kinfolk.testing.kit import BOUND, Kit, assert_same
from kinfolk.testing.marks import each_tiny, needs
from kinfolk.types import CHUNK_POSITIONS

FEATURE_BOUND = 2.0**-7 + BOUND
"""How far two features may differ, relative to the largest of a layer: bfloat16 numbers on either
side of a rounding limit are 2^-7 apart."""

TREE = (-1, 0, 0, 1, 2, 2)
LEAVES = (3, 4, 5)


class FeatureChecks:
    """Features belong to their layers and rows in every kind of step."""

    @each_tiny
    @needs("tiny", "features")
    def test_features_change_no_logits(self, kinfolk_kit: Kit) -> None:
        """Logits with features are those without, bit for bit."""
        loaded = kinfolk_kit.with_features(range(layers_of(kinfolk_kit)), final=True)
        found = kinfolk_kit.logits(loaded, kinfolk_kit.tokens)
        expected = kinfolk_kit.logits(kinfolk_kit.loaded, kinfolk_kit.tokens)
        assert torch.equal(found, expected), "features change the logits"

    @each_tiny
    @needs("tiny", "features")
    def test_features_are_those_of_their_layers(self, kinfolk_kit: Kit) -> None:
        """Features stand in the order asked for: the last layer's are the hidden states, and behind
        all are the normed ones, both as bfloat16."""
        count = layers_of(kinfolk_kit)
        order = random.Random(0).sample(range(count), count)
        for layers in (order, order[::-1]):
            found, hidden, normed = features_of(kinfolk_kit, layers, final=True)
            assert found.dtype == torch.bfloat16, f"features are {found.dtype}, not bfloat16"
            assert found.shape == (len(hidden), (count + 1) * hidden.shape[1]), (
                f"features of {count} layers and final have shape {tuple(found.shape)}"
            )
            *parts, final = found.split(hidden.shape[1], 1)
            assert torch.equal(final, normed.bfloat16()), "final is not norm(hidden)"
            stream = dict(zip(layers, parts, strict=True))
            assert torch.equal(stream[count - 1], hidden.bfloat16()), (
                "features of the last layer are not the hidden states"
            )
            for before, after in pairwise(range(count)):
                assert not torch.equal(stream[before], stream[after]), (
                    f"features of layers {before} and {after} are the same"
                )
            alone, *_ = features_of(kinfolk_kit, layers[:1])
            assert torch.equal(alone, parts[0]), f"features of layer {layers[0]} differ by place"

    @each_tiny
    @needs("tiny", "features")
    @pytest.mark.parametrize("replays", [False, True], ids=["eager", "replays"])
    def test_slices_and_decoding_have_the_features_of_one_pass(
        self, kinfolk_kit: Kit, replays: bool
    ) -> None:
        """Slices and decoding, captured or not, give the features of one pass."""
        drive, lease, neighbour = started(kinfolk_kit, replays)
        tokens, found = kinfolk_kit.tokens, []
        for size in (5, CHUNK_POSITIONS, 33, 1, 1, 1):
            start = drive.kv_cache.tables.length(lease)
            kind = ItemKind.PREFILL if size > 1 else ItemKind.DECODE
            here = drive.kv_cache.tables.length(neighbour)
            other = Item(neighbour, "", ItemKind.DECODE, (1,), here)
            mine = Item(lease, "", kind, tuple(tokens[start : start + size]), start)
            drive.step([other, mine])
            found.append(drive.features()[1])
        assert_features(kinfolk_kit, drive, torch.cat(found), tokens[:105], 0)

    @each_tiny
    @needs("tiny", "features")
    @pytest.mark.parametrize("replays", [False, True], ids=["eager", "replays"])
    def test_drafts_have_the_features_of_one_pass(self, kinfolk_kit: Kit, replays: bool) -> None:
        """Chains, trees and what follows them, captured or not, give the features of one pass."""
        drive, lease, neighbour = started(kinfolk_kit, replays)
        text = kinfolk_kit.tokens[:100]
        drive.feed({lease: text})
        chain, tree = (kinfolk_kit.random_tokens(len(TREE), seed=seed) for seed in (2, 3))
        drive.draft({neighbour: (chain[::-1], None), lease: (chain, None)})
        assert_features(kinfolk_kit, drive, drive.features()[1], [*text, *chain], len(text))
        drive.keep({neighbour: [0], lease: [0, 1]})
        text = [*text, *chain[:2]]
        drive.draft({neighbour: (chain[:2], None), lease: (tree, TREE)})
        rows = drive.features()[1]
        for end in LEAVES:
            path = path_to(TREE, end)
            along = [*text, *(tree[row] for row in path)]
            assert_features(kinfolk_kit, drive, rows[path], along, len(text))
        drive.keep({neighbour: [0], lease: path})
        ahead = kinfolk_kit.random_tokens(3, seed=4)
        drive.feed({lease: ahead})
        assert_features(kinfolk_kit, drive, drive.features()[0], [*along, *ahead], len(along))

    @needs("tiny", "features")
    def test_features_of_no_layer_are_refused(self, kinfolk_kit: Kit) -> None:
        """A layer that does not exist, or is named twice, is an error that names it."""
        count = layers_of(kinfolk_kit)
        for layers, named in (([count], count), ([0, -1], -1), ([count - 1, 0, 0], 0)):
            with pytest.raises(ValueError, match=rf"layer {named}\b"):
                kinfolk_kit.with_features(layers)


def layers_of(kit: Kit) -> int:
    return len(kit.plan.layers)


def features_of(
    kit: Kit, layers: list[int], *, final: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features of the kit's tokens in one pass, the hidden states and the normed ones."""
    loaded = kit.with_features(layers, final=final)
    drive = kit.driver(loaded)
    drive.feed({drive.open(): kit.tokens})
    hidden = drive.forward.hidden
    with torch.inference_mode():
        return drive.features()[0], hidden, loaded.model.norm(hidden)


def started(kit: Kit, replays: bool) -> tuple[Driver, SlotLease, SlotLease]:
    """A driver of the model with all features, an empty sequence, and one that has begun."""
    loaded = kit.with_features(range(layers_of(kit))[::-1], final=True)
    drive = kit.driver(loaded, replays=replays)
    lease, neighbour = drive.open(), drive.open()
    drive.feed({neighbour: kit.random_tokens(40, seed=1)})
    return drive, lease, neighbour


def assert_features(
    kit: Kit, drive: Driver, found: torch.Tensor, text: list[int], start: int
) -> None:
    """Assert that the driver's model gives the features ``found`` from row ``start`` of ``text``
    on, when it reads the text in one pass."""
    alone = kit.driver(drive.loaded)
    alone.feed({alone.open(): text})
    expected, width = alone.features()[0][start:], alone.forward.hidden.shape[1]
    parts, wanted = found.reshape(-1, width).float(), expected.reshape(-1, width).float()
    assert_same(parts, wanted, bound=FEATURE_BOUND)
