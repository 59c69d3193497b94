"""Anchors, masks, labels and weights, against their definition element by element."""

from __future__ import annotations

import math

import pytest
import torch

from kinfolk.train.blocks import blocks_at, sample_anchors
from kinfolk.train.dflash.masks import block_mask, context_mask
from kinfolk.train.texts import Text

TEXT = Text(tuple(range(100, 120)), first=5)


@pytest.mark.parametrize("window", [None, 6])
def test_a_row_sees_the_context_before_its_anchor(window):
    anchors, block, length = torch.tensor([5, 9, 14]), 4, 20
    mask = context_mask(anchors, block, length, window)
    for n, anchor in enumerate(anchors.tolist()):
        for row in range(block):
            for place in range(length):
                seen = place < anchor
                if window is not None:
                    seen = seen and place >= anchor + row - (window - 1)
                assert mask[n, row, place] == seen


def test_rows_of_full_layers_see_their_block_and_those_of_windowed_layers_what_is_before():
    device = torch.device("cpu")
    assert block_mask(5, None, device).all()
    assert block_mask(5, 8, device).equal(torch.ones(5, 5, dtype=torch.bool).tril())


def test_row_o_predicts_the_token_at_its_own_position():
    blocks = blocks_at(TEXT, torch.tensor([5, 17]), 4, 7.0)
    assert blocks.tokens.tolist() == [105, 117]
    assert blocks.labels.tolist() == [[0, 106, 107, 108], [0, 118, 119, 0]]
    assert (blocks.weights > 0).tolist() == [[False, True, True, True], [False, True, True, False]]


def test_weights_decay_as_published():
    """exp(-(o - 1) / 7), to the four digits that are published with gamma 7."""
    blocks = blocks_at(Text(tuple(range(40))), torch.tensor([3]), 16, 7.0)
    golden = [1, 0.8669, 0.7515, 0.6514, 0.5647, 0.4895, 0.4244, 0.3679]
    assert blocks.weights[0, 1:9].tolist() == pytest.approx(golden, abs=5e-5)
    assert blocks.weight == pytest.approx(sum(math.exp(-k / 7) for k in range(15)), rel=1e-6)


def test_anchors_are_different_and_supervised_with_the_token_behind_them():
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(200):
        anchors = sample_anchors(TEXT, 6, generator).tolist()
        assert anchors == sorted(set(anchors))
        assert len(anchors) == 6
        seen |= set(anchors)
    assert seen == set(range(5, 19))


def test_a_text_without_a_prompt_has_no_anchor_at_its_first_token():
    anchors = sample_anchors(Text((7, 8, 9, 10), first=0), 9, torch.Generator())
    assert anchors.tolist() == [1, 2]
