"""The scenes that tests on a GPU share, in float32 on the CPU."""

from __future__ import annotations

from dataclasses import replace

import drafter_scenes as scenes
import pytest
import torch
from executor_scenes import Side, assert_same
from joint_scenes import JointLaw, three_tokens_have_the_joint_law

from kinfolk.engine.buckets import Bucket
from kinfolk.engine.cuda_graph import EagerCapture
from kinfolk.engine.executor import StepKind
from kinfolk.spec.sampling import SamplingKind


@pytest.fixture(scope="module")
def models(cases, registry, tmp_path_factory):
    return scenes.Models("cpu", cases, tmp_path_factory.mktemp("drafters"), registry)


@pytest.mark.parametrize("mode", ["chain", "tree"])
@pytest.mark.parametrize("name", ["windows", "mtp qwen35moe"])
def test_outputs_are_those_without_drafts(models, text, name, mode):
    assert scenes.outputs_are_those_without_drafts(models, name, mode, text) == 0


def test_two_runners_replay_the_same(models, text):
    scenes.replays_are_the_launches(models, "mtp qwen35", "auto", text, EagerCapture(), assert_same)


def test_the_same_steps_capture_nothing_again(models, text):
    scenes.nothing_is_captured_again(models, "windows", text, steps=20)


@pytest.mark.parametrize("name", ["windows", "mtp qwen35"])
def test_kernels_are_compiled_without_a_look_at_what_they_would_write(models, monkeypatch, name):
    """With launches suppressed, the op leaves any number as an index, and a GPU faults at one."""
    loaded = models.drafted(name, "chain")
    accept = loaded.step_ops.accept_drafts

    def undefined(*operands):
        return tuple(torch.full_like(part, 1 << 40) for part in accept(*operands))

    # On a GPU, packing launches a kernel too, so it reads nothing.
    ops = replace(loaded.step_ops, accept_drafts=undefined, pack_outputs=lambda *_: torch.zeros(1))
    executor = Side(replace(loaded, step_ops=ops)).runner.executor
    monkeypatch.setattr(loaded.ops, "launches_suppressed", True)
    bucket = Bucket("verify", 8, 1, 16, trees=True, drafted=8)
    with torch.inference_mode():
        executor.capture_whole(StepKind.of(bucket, SamplingKind(True, 0))).replay()
    assert not executor.drafting.store.length.any()


def test_three_tokens_have_the_joint_chances_of_the_bundled_model(models):
    """Few draws, which tell a law only from one that is far from it."""
    three_tokens_have_the_joint_law(models, JointLaw(models), "chain", draws=40, wrong=0.9)


def test_another_token_than_the_best_is_no_tie(models, text):
    plain = models.open("windows")
    (request,) = scenes.requests_of(text, plain.info.vocabulary, 1, new=6)
    (expected,), _, _ = scenes.answers(plain, [request])
    assert scenes.ties(plain, request, expected, expected) == 0
    with pytest.raises(AssertionError, match="token 3 is no tie"):
        scenes.ties(plain, request, expected, [*expected[:3], (expected[3] + 1) % 700, 0, 0])
