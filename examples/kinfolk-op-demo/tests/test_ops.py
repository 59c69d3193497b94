"""The replaced op alone and in a loaded model, and the added op through the registry."""

from __future__ import annotations

import pytest
import torch
from kinfolk_op_demo.clipped_swiglu import CLIPPED_SWIGLU, ClippedSwiGLUArguments
from kinfolk_op_demo.inplace import act_and_mul, supports

from kinfolk.engine.bundled import bundled_model
from kinfolk.engine.loading import load_model
from kinfolk.engine.score import logits
from kinfolk.errors import UnsupportedModelError
from kinfolk.ops.binding import Ops
from kinfolk.registry import Registry
from kinfolk.settings import load_settings
from kinfolk_kernels.act_and_mul.op import ActAndMulArguments

TOKENS = list(range(40))
CPU = torch.device("cpu")


# -- replaced -------------------------------------------------------------------------------------


def test_it_is_the_same_op_and_needs_no_memory():
    gate, up = torch.randn(2, 7, 30)
    expected = torch.nn.functional.silu(gate) * up
    arguments = ActAndMulArguments("silu", torch.float32, CPU)
    assert supports(arguments)
    result = act_and_mul(arguments, gate, up)
    torch.testing.assert_close(result, expected)
    assert result.data_ptr() == gate.data_ptr()


@pytest.mark.parametrize(
    ("activation", "dtype", "reason"),
    [
        ("silu", torch.bfloat16, "needs float32, not torch.bfloat16"),
        ("gelu_tanh", torch.float32, "has no gelu_tanh"),
    ],
)
def test_what_it_cannot_do_it_refuses_with_a_reason(activation, dtype, reason):
    verdict = supports(ActAndMulArguments(activation, dtype, CPU))
    assert not verdict
    assert verdict.reason == reason


@pytest.fixture(scope="module")
def registry():
    torch.set_num_threads(1)
    return Registry.discover(load_settings())


def run(registry, **options):
    loaded = load_model(bundled_model(registry), load_settings(device="cpu", **options), registry)
    rows = torch.cat(list(logits(loaded, TOKENS)))
    return rows, [d.backend for d in loaded.ops.decisions.values() if d.op == "act_and_mul"]


def test_it_runs_when_it_is_asked_for_and_only_then(registry):
    expected, usual = run(registry)
    rows, chosen = run(registry, op="act_and_mul=inplace")
    assert "inplace" not in usual
    assert chosen == ["inplace"]
    torch.testing.assert_close(rows, expected, rtol=1e-4, atol=1e-4)


def test_asked_for_what_it_cannot_do_the_error_names_it_and_the_reason(registry):
    with pytest.raises(UnsupportedModelError, match=r"act_and_mul.*inplace: needs float32"):
        run(registry, op="act_and_mul=inplace", dtype="bf16")


# -- added ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choose", "dtype", "backend"),
    [
        ({}, torch.float32, "inplace"),
        ({}, torch.bfloat16, "reference"),
        ({"clipped_swiglu": "reference"}, torch.float32, "reference"),
    ],
)
def test_an_op_of_the_plugin_is_bound_like_any_other(registry, choose, dtype, backend):
    ops = Ops([provided.value for provided in registry.op_backends], choose)
    op = ops.bind(CLIPPED_SWIGLU, ClippedSwiGLUArguments(7.0, 1.702, dtype))
    gate, up = (10 * torch.randn(2, 3, 64)).to(dtype)
    g, u = gate.double().clamp_max(7), up.double().clamp(-7, 7)
    expected = g * (1.702 * g).sigmoid() * (u + 1)
    bound = {torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    torch.testing.assert_close(op(gate, up).double(), expected, rtol=bound, atol=bound)
    assert [d.backend for d in ops.decisions.values()] == [backend]
