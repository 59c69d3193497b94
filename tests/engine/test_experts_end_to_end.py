"""Models with experts through Triton's router and experts, against logits stored with the cases.

Everything runs in Triton's interpreter; the other ops run as on any CPU.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from expert_files import write_experts, write_wide_experts

from kinfolk.engine.loading import load_model
from kinfolk.engine.score import logits
from kinfolk.registry import Registry
from kinfolk.settings import load_settings
from kinfolk_kernels.experts import pair_launches
from kinfolk_kernels.fetch.op import FETCHED

pytestmark = [pytest.mark.interpreter, pytest.mark.timeout(600)]

STAY_CLOSE = {"qwen35moe": 12, "gemma4moe": 2, "laguna": 1}
"""Rows by case; in others a rounded score may choose another key or another expert."""

ROWS = 12
EXACT, HALF = 2e-4, 2e-2
TRITON = "experts=triton,route=triton"


@pytest.fixture(scope="module")
def load():
    registry = Registry.discover(load_settings())

    def run(path, **settings):
        fixed = {"device": "cpu", "dtype": "f32", "context": 64, "slots": 1}
        return load_model(path, load_settings(**{**fixed, **settings}), registry)

    return run


def scores(model, tokens, rows):
    found = torch.cat(list(logits(model, tokens, chunk=rows)))
    ran = {(d.op, d.backend) for d in model.ops.decisions.values()}
    assert {("experts", "triton"), ("route", "triton")} <= ran
    return found


def error(found, expected):
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())


@pytest.mark.parametrize("case", STAY_CLOSE)
@pytest.mark.parametrize("rows", [1, 5])
def test_logits_equal_those_stored(cases, load, case, rows):
    stored = np.load(cases / f"{case}.npz")
    tokens, expected = stored["tokens"].tolist(), torch.from_numpy(stored["logits"])
    model = load(cases / f"{case}.gguf", op=TRITON)
    found = scores(model, tokens[:ROWS], rows)
    assert found.isfinite().all()
    same = STAY_CLOSE[case]
    assert error(found[:same], expected[:same]) <= EXACT


@pytest.fixture(scope="module")
def packed(cases, tmp_path_factory):
    """A case whose gate and up matrices of experts are quantised; its down matrices are too short
    for planes."""

    def change(name, numbers):
        return numbers, "F32" if "down" in name else "Q8_0"

    path = tmp_path_factory.mktemp("experts") / "packed.gguf"
    return write_experts(cases / "qwen35moe.gguf", path, change)


def test_experts_in_planes_are_the_same_model(packed, load):
    tokens = [5, 300, 71, 9, 640, 2, 33, 500]
    plain = load(packed, weights="dense")
    expected = torch.cat(list(logits(plain, tokens, chunk=8)))
    model = load(packed, weights="packed", dtype="f16", op=TRITON)
    assert model.packed["Q8_0"] > 0
    assert 1e-6 < error(scores(model, tokens, 8), expected) <= HALF


@pytest.mark.parametrize("case", STAY_CLOSE)
def test_a_row_that_fetches_in_its_product_gets_the_bits_of_full_residency(
    cases, load, tmp_path, monkeypatch, case
):
    monkeypatch.setattr(pair_launches, "QUADS", 16)
    path = write_wide_experts(cases / f"{case}.gguf", tmp_path / "wide.gguf")
    tokens = [5, 300, 71, 9]
    fixed = {"weights": "packed", "dtype": "f16"}
    full = load(path, op="experts=triton,route=torch", **fixed)
    expected = torch.cat(list(logits(full, tokens, chunk=1)))
    fetched = "experts=triton,fetch=triton,fetch_experts=triton,route=torch"
    far = load(path, op=fetched, expert_budget="75%", **fixed)
    assert torch.equal(torch.cat(list(logits(far, tokens, chunk=1))), expected)
    assert ("fetch_experts", "triton") in far.ops.decisions
    assert sum(int(each.traffic[FETCHED]) for each in far.experts.layers.values()) > 0
    far.experts.check_integrity()
