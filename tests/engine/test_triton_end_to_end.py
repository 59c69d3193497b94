"""Every op that has a back end in Triton, together in one model and in the interpreter, against the
logits that transformers computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from kinfolk.engine.engine import Engine
from kinfolk.engine.loading import load_model
from kinfolk.sched.events import Finished
from kinfolk.sched.limits import SchedulerLimits
from kinfolk.sched.request import Request
from kinfolk.settings import load_settings
from kinfolk.testing.driver import Driver

pytestmark = [pytest.mark.interpreter, pytest.mark.timeout(900)]

OPS = (
    *("linear", "linears", "silu_mul", "rms_norm", "add_rms_norm"),
    *("delta_inputs", "causal_conv_commit", "gated_delta", "gated_delta_commit"),
    *("qk_rope_write", "gated_attention"),
)
# Sums of float32 in another order.
BOUND = 2e-4


@pytest.fixture(scope="module")
def model(registry, cases):
    settings = load_settings(
        device="cpu",
        dtype="f32",
        context=128,
        slots=3,
        graphs="on",
        op=",".join(f"{op}=triton" for op in OPS),
    )
    return load_model(cases / "qwen35.gguf", settings, registry)


@pytest.fixture(scope="module")
def reference(cases):
    stored = np.load(cases / "qwen35.npz")
    return stored["tokens"].tolist(), torch.from_numpy(stored["logits"])


def assert_near(found, expected):
    error = (found - expected).norm(dim=1) / expected.norm(dim=1)
    assert float(error.max()) <= BOUND


def test_slices_single_rows_and_drafts_of_one_sequence(model, reference):
    tokens, expected = reference
    drive = Driver(model)
    lease = drive.open(100)
    assert_near(drive.feed({lease: tokens[:5]})[lease], expected[:5])
    assert_near(drive.feed({lease: tokens[5:6]})[lease], expected[5:6])
    draft = {lease: (tokens[6:9], None)}
    assert_near(drive.draft(draft)[lease], expected[6:9])
    drive.keep({lease: [0, 1]})
    tree = {lease: ((tokens[8], 1, tokens[9]), (-1, 0, 0))}
    assert_near(drive.draft(tree)[lease][[0, 2]], expected[[8, 9]])
    drive.keep({lease: [0, 2]})
    assert_near(drive.feed({lease: tokens[10:11]})[lease], expected[10:11])
    ran = {(d.op, d.backend) for d in model.ops.decisions.values()}
    assert {(op, "triton") for op in OPS} - ran == set()


def test_tokens_of_padded_steps_are_those_of_the_cpu(model, load, reference):
    """Three sequences in buckets of four rows; what others are there changes no token."""
    tokens, _ = reference

    def answers(loaded):
        limits = SchedulerLimits(slots=3, context=64, step_tokens=32, slice=16, quantum=4)
        with Engine(loaded, limits) as engine:
            tickets = [engine.submit(Request(str(i), tuple(tokens[: 3 + i]), 3)) for i in range(3)]
            found = []
            for ticket in tickets:
                *events, end = list(ticket)
                assert isinstance(end, Finished)
                assert end.error is None
                found.append([token for event in events for token in event.tokens])
            return found, engine._runner.counters

    found, counters = answers(model)
    assert counters["replays"] > 0
    plain, _ = answers(replace(load(context=128, slots=3), graphs=False))
    assert found == plain
