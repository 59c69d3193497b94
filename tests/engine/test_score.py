"""Logits of every position of a text."""

from __future__ import annotations

import pytest
import torch

from kinfolk.engine import score
from kinfolk.errors import ContextLengthExceeded

CLOSE = 1e-3
"""2e-4 of the largest logit, about 5: the bound of the reference case. Slices of other lengths
round otherwise; 1.3e-4 was measured."""


@pytest.fixture
def whole(loaded, text):
    return torch.cat(list(score.logits(loaded, text)))


@pytest.mark.parametrize("chunk", [1, 7, 64, 160, 10_000])
def test_the_length_of_slices_changes_nothing(loaded, text, whole, chunk):
    parts = list(score.logits(loaded, text, chunk=chunk))
    assert [len(part) for part in parts[:-1]] == [chunk] * (len(parts) - 1)
    assert all(part.dtype == torch.float32 for part in parts)
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=CLOSE)


def test_a_row_depends_on_what_is_before_it_alone(loaded, text, whole):
    changed = torch.cat(list(score.logits(loaded, [*text[:90], 5, 6, 7])))
    torch.testing.assert_close(changed[:90], whole[:90], rtol=0, atol=CLOSE)
    assert float((changed[90] - whole[90]).abs().max()) > 100 * CLOSE


def test_no_slice_is_longer_than_the_models(load, text):
    model = load(context=2000)
    sizes = [len(part) for part in score.logits(model, (text * 4)[:600])]
    assert sizes == [model.slice_rows, 600 - model.slice_rows]


def test_progress_is_reported_after_each_slice(loaded, text):
    seen = []
    for _ in score.logits(loaded, text, chunk=60, progress=lambda *n: seen.append(n)):
        pass
    assert seen == [(60, 160), (120, 160), (160, 160)]


def test_a_text_longer_than_the_context_is_refused(loaded, text):
    with pytest.raises(ContextLengthExceeded, match="640 tokens do not fit the context of 512"):
        list(score.logits(loaded, text * 4))


def test_no_tokens_give_no_logits(loaded):
    assert list(score.logits(loaded, [])) == []
