"""Drafters with weights on the GPU: outputs are those without drafts, steps and drafts are replayed
bit for bit, and the host waits for no draft."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import drafter_scenes as scenes
import numpy as np
import pytest
import torch
from joint_scenes import JointLaw, three_tokens_have_the_joint_law

from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.cuda_graph import CudaCapture, EagerCapture
from kinfolk.engine.executor import GraphExecutor
from kinfolk.registry import Registry
from kinfolk.settings import load_settings

# One process for all: files are written, and kernels compiled, once.
pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.xdist_group("drafters")]

log = logging.getLogger(__name__)

MOST_TIES = 2
"""Of four answers of 40 tokens: two scores are seldom within rounding."""


@pytest.fixture(scope="module")
def models(cases, tmp_path_factory):
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    return scenes.Models("cuda", cases, tmp_path_factory.mktemp("drafters"), registry)


@pytest.fixture(scope="module")
def text(cases):
    return np.load(cases / "qwen35.npz")["tokens"].tolist()


@pytest.fixture(autouse=True)
def nothing_waits(monkeypatch) -> Iterator[None]:
    """A replay of a step, or a draft behind it, in which the host waits for the device is an error;
    captures may wait."""

    def in_mode(mode, method):
        def guarded(self, *arguments):
            before = torch.cuda.get_sync_debug_mode()
            torch.cuda.set_sync_debug_mode(mode)
            try:
                return method(self, *arguments)
            finally:
                torch.cuda.set_sync_debug_mode(before)

        return guarded

    for name, mode in (("replay", "error"), ("draft", "error"), ("capture_draft", "default")):
        monkeypatch.setattr(GraphExecutor, name, in_mode(mode, getattr(GraphExecutor, name)))
    yield
    torch.cuda.set_sync_debug_mode("default")


def assert_equal(one, other):
    assert torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@pytest.mark.parametrize("mode", ["chain", "tree"])
@pytest.mark.parametrize("name", scenes.MODELS)
def test_outputs_in_float32_are_those_without_drafts(models, text, name, mode):
    ties = scenes.outputs_are_those_without_drafts(models, name, mode, text)
    log.info("%s, %s: %d ties", name, mode, ties)
    assert ties <= MOST_TIES


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", scenes.MODELS)
def test_steps_and_drafts_are_replayed_bit_for_bit(models, text, name, dtype):
    runner = scenes.replays_are_the_launches(
        models, name, "auto", text, EagerCapture(), assert_equal, dtype=dtype
    )
    assert isinstance(runner.executor.capture, CudaCapture)


@pytest.mark.parametrize("name", ["windows", "mtp qwen35"])
def test_two_hundred_steps_capture_allocate_and_wait_no_more(models, text, name):
    scenes.nothing_is_captured_again(models, name, text)


@pytest.mark.parametrize("kind", ["dflash", "mtp"])
def test_a_drafter_is_trained_and_its_drafts_are_kept(models, kind):
    """Thirty tokens take 29 steps without drafts, and 8 with drafts that are all right."""
    assert scenes.a_trained_drafter_is_kept(models, kind, steps=150) < 18


@pytest.fixture(scope="module")
def law(models):
    return JointLaw(models)


@pytest.mark.parametrize("mode", ["chain", "tree"])
def test_three_tokens_have_the_joint_chances_of_the_bundled_model(models, law, mode):
    three_tokens_have_the_joint_law(models, law, mode, draws=20_000, wrong=0.55)
