"""Chunks chosen by attention with the kernels of a GPU, run by Triton's interpreter."""

from __future__ import annotations

import random

import pytest
import torch
from paged_scene import PagedScene

from kinfolk.engine.loading import load_model
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings

pytestmark = pytest.mark.interpreter

OPS = ("chunk_digest", "chunk_scores", "write_queries")


def test_kernels_choose_what_the_references_choose(registry, cases):
    """A model with heads of 64 numbers, captured steps with padding, and rows that run for their
    queries."""
    scores, tokens = [], []
    for backend in ("triton", "reference"):
        settings = load_settings(
            device="cpu",
            dtype="f32",
            context=2048,
            slots=1,
            kvflash=640,
            kvflash_burst=2,
            kvflash_tau=8,
            graphs="on",
            draft="off",
            op=tuple(f"{op}={backend}" for op in OPS),
        )
        loaded = load_model(cases / "gemma4.gguf", settings, registry)
        source = random.Random(3)
        prompt = tuple(source.randrange(loaded.info.vocabulary) for _ in range(830))
        scene = PagedScene(loaded, slots=1)
        scene.submit(Request("a", prompt, 20))
        scene.drain()
        assert {(op, backend) for op in OPS} <= set(loaded.ops.decisions)
        scores.append([torch.tensor(found.values) for _, found in scene.scores])
        tokens.append(scene.said["a"].tokens)
    assert tokens[0] == tokens[1]
    assert len(scores[0]) == len(scores[1]) >= 3
    for ours, theirs in zip(*scores, strict=True):
        assert float((ours - theirs).abs().max()) < 1e-3
