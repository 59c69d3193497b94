"""The back end, alone and in a loaded model."""

from __future__ import annotations

import pytest
import torch
from kinfolk_op_demo.inplace import silu_mul, supports

from kinfolk.engine.bundled import bundled_model
from kinfolk.engine.loading import load_model
from kinfolk.engine.score import logits
from kinfolk.errors import UnsupportedModelError
from kinfolk.registry import Registry
from kinfolk.settings import load_settings

TOKENS = list(range(40))


def test_it_is_the_same_op_and_needs_no_memory():
    gate, up = torch.randn(2, 7, 30)
    expected = torch.nn.functional.silu(gate) * up
    assert supports(gate, up)
    found = silu_mul(gate, up)
    torch.testing.assert_close(found, expected)
    assert found.data_ptr() == gate.data_ptr()


@pytest.mark.parametrize(
    ("gate", "up", "reason"),
    [
        (torch.ones(2, 4).bfloat16(), torch.ones(2, 4), "needs float32, not torch.bfloat16 (gate)"),
        (torch.ones(2, 4), torch.ones(2, 4).half(), "needs float32, not torch.float16 (up)"),
        (torch.ones(4, 2).T, torch.ones(2, 4), "needs a contiguous gate"),
        (torch.ones(1, 4), torch.ones(2, 4), "needs a contiguous gate of the shape of up"),
    ],
)
def test_what_it_cannot_do_it_refuses_with_a_reason(gate, up, reason):
    verdict = supports(gate, up)
    assert not verdict
    assert verdict.reason.startswith(reason)


@pytest.fixture(scope="module")
def registry():
    torch.set_num_threads(1)
    return Registry.discover(load_settings())


def run(registry, **options):
    loaded = load_model(bundled_model(registry), load_settings(device="cpu", **options), registry)
    found = torch.cat(list(logits(loaded, TOKENS)))
    return found, [d.backend for d in loaded.ops.decisions.values() if d.op == "silu_mul"]


def test_it_runs_when_it_is_asked_for_and_only_then(registry):
    expected, usual = run(registry)
    found, chosen = run(registry, op="silu_mul=inplace")
    assert "inplace" not in usual
    assert chosen == ["inplace"]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_asked_for_what_it_cannot_do_the_error_names_it_and_the_reason(registry):
    with pytest.raises(UnsupportedModelError, match=r"silu_mul.*inplace: needs float32"):
        run(registry, op="silu_mul=inplace", dtype="bf16")
