"""What a trainer takes from a target: features, embedding and head of every family."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from kinfolk.errors import UnsupportedModelError
from kinfolk.testing.driver import Driver
from kinfolk.train.target import FrozenTarget
from kinfolk.train.texts import Text

FAMILIES = ["qwen35", "qwen35moe", "gemma4", "gemma4moe", "laguna"]
TEXT = Text(tuple(range(3, 83)))


@pytest.fixture(params=FAMILIES)
def target(request, load_case):
    return FrozenTarget(load_case(request.param), (1, 2), kept_bytes=1 << 20)


def test_the_head_is_the_models_whatever_stores_it(target):
    rows = torch.randn(5, target.loaded.config.width, generator=torch.Generator().manual_seed(2))
    expected = target.loaded.model.logits(rows.to(target.loaded.model.norm(rows[:1]).dtype))
    torch.testing.assert_close(target.logits(rows), expected.float(), atol=1e-3, rtol=1e-3)


def test_the_last_norm_is_the_models(target):
    rows = torch.randn(5, target.loaded.config.width, generator=torch.Generator().manual_seed(2))
    scaled = rows / rows.square().mean(-1, keepdim=True).sqrt() * target.last_norm
    expected = target.loaded.model.norm(rows).float()
    torch.testing.assert_close(scaled, expected, atol=1e-4, rtol=1e-4)


def test_features_are_those_of_a_forward_and_the_same_when_kept(target, load_case):
    loaded = load_case(target.loaded.family.name)
    if loaded.file.path != target.loaded.file.path:
        loaded = load_case(target.loaded.file.path.stem)
    loaded.model.features((1, 2))
    driver = Driver(loaded)
    lease = driver.open()
    driver.feed({lease: TEXT.tokens})
    (expected,) = driver.features()
    first = target.features(TEXT)
    assert first.equal(expected.float())
    assert target.features(TEXT).equal(first)
    target.features(Text(tuple(range(200, 230))))
    again = FrozenTarget(load_case(target.loaded.file.path.stem), (1, 2))
    assert again.features(TEXT).equal(first)
    assert again.features(TEXT).equal(first)  # computed again, in a slot that was used


def test_features_of_many_texts_are_those_of_each(load_case):
    """Texts of other lengths, in groups of four and alone, as far as there is memory."""
    texts = [
        Text(tuple(range(5 * n, 5 * n + length)))
        for n, length in enumerate((9, 64, 1, 130, 20, 65))
    ]
    together = FrozenTarget(load_case(slots=4), (1, 2), kept_bytes=1 << 20)
    assert list(together.keep_all(texts)) == [1, 2, 3, 4, 5, 6]
    alone = FrozenTarget(load_case(), (1, 2))
    for text in texts:
        torch.testing.assert_close(
            together.features(text), alone.features(text), atol=2e-2, rtol=2e-2
        )
    assert list(alone.keep_all(texts)) == [1]


def test_gradients_reach_the_rows_of_the_head(target):
    rows = torch.randn(3, target.loaded.config.width, requires_grad=True)
    target.logits(rows).sum().backward()
    assert rows.grad.isfinite().all()
    assert not target.head.requires_grad


def without_features(loaded):
    model = SimpleNamespace(logits=loaded.model.logits, norm=loaded.model.norm)
    return SimpleNamespace(model=model, file=loaded.file, family=loaded.family)


def test_a_model_without_features_is_refused_by_name(load_case):
    with pytest.raises(UnsupportedModelError, match=r"qwen35\.gguf: family 'qwen35'.*features"):
        FrozenTarget(without_features(load_case()), (1,))


def test_a_head_that_is_no_matrix_is_refused(load_case):
    loaded = load_case()
    logits = loaded.model.logits
    loaded.model.logits = lambda rows: logits(rows).relu()
    with pytest.raises(UnsupportedModelError, match="is not one matrix"):
        FrozenTarget(loaded, (1,))
