"""A head is trained on what a tiny model says, and is then right about it."""

from __future__ import annotations

import pytest
import torch
from kinfolk_drafter_demo.file import write
from kinfolk_drafter_demo.train import DEPTH, Head, train

from kinfolk.engine.loading import load_model
from kinfolk.engine.runtime import Runtime
from kinfolk.sched.events import Emitted
from kinfolk.sched.request import Request
from kinfolk.testing.drafter_kit import DrafterKit

LENGTH = 120


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    torch.set_num_threads(1)
    return DrafterKit("recurrent", tmp_path_factory.mktemp("kit"))


def answer(kit, **options):
    """The tokens of a greedy answer, and its usage."""
    settings = kit.target.settings(context=512, **options)
    with Runtime.open(kit.target.path, settings, kit.registry) as runtime:
        tokens, end = [], None
        for event in runtime.engine.submit(Request("one", tuple(kit.tokens(20)), LENGTH)):
            if isinstance(event, Emitted):
                tokens += event.tokens
            else:
                end = event
    return tokens, end.usage


def test_a_trained_head_is_right_and_changes_no_token(kit, tmp_path):
    tokens, plain = answer(kit)
    loaded = load_model(kit.target.path, kit.target.settings(context=512), kit.registry)
    said = [[*kit.tokens(20), *tokens]]
    head = train(loaded, said, count=1, steps=200, hidden=64)
    path = tmp_path / "head.gguf"
    write(path, head.tensors(), vocabulary=loaded.info.vocabulary, depth=DEPTH)
    options = {"draft": "recurrent", "draft_model": path, "draft_tokens": DEPTH}
    drafted, usage = answer(kit, **options)
    assert drafted == tokens
    assert plain.steps == LENGTH - 1
    assert usage.steps < plain.steps / 2


def test_the_head_is_the_one_that_was_trained(kit, tmp_path):
    """Plain torch, and the head that drafts, have the same hidden rows."""
    width, hidden = kit.target.config.width, 24
    head = Head(width, hidden)
    with torch.no_grad():
        for weight in head.parameters:
            weight.normal_()
    path = tmp_path / "head.gguf"
    write(path, head.tensors(), vocabulary=kit.target.config.vocabulary, depth=2)
    loaded = load_model(kit.target.path, kit.settings(draft_model=path), kit.registry)
    built = loaded.drafter.drafter
    state, tokens = torch.randn(5, width), torch.arange(5)
    with torch.no_grad():
        expected = head(state, loaded.model.embed(tokens).float())
        torch.testing.assert_close(built.step(state, tokens), expected, rtol=1e-5, atol=1e-4)
