"""The study of scores of chunks: its scorers and its texts, without a model's forward."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch

from kinfolk.cli.main import BUILT_IN
from kinfolk.engine.text import open_text
from kinfolk.registry import Registry
from kinfolk.settings import load_settings


@pytest.fixture(scope="module")
def recall(repo):
    spec = importlib.util.spec_from_file_location("recall", repo / "benchmarks/recall.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["recall"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["recall"]


@pytest.fixture
def layers(recall):
    generator = torch.Generator().manual_seed(0)

    def layer():
        keys = 2 + torch.randn(12, 2, 64, 64, generator=generator)
        return recall.Layer(torch.randn(8, 4, 64, generator=generator), keys, 0.125)

    return [layer(), layer()]


def test_the_row_of_the_ops_is_what_the_scorer_of_two_bits_says(recall, layers):
    by_ops = recall.by_ops(layers)
    written_out = recall.by_mass(layers, recall.quantised(2, "first"))
    # The op stores scales in float16.
    torch.testing.assert_close(by_ops, written_out, rtol=2e-2, atol=1e-3)


def test_more_bits_are_nearer_to_exact_keys(recall, layers):
    exact = recall.by_mass(layers, recall.exact)
    errors = [
        float((recall.by_mass(layers, recall.quantised(bits, "first")) - exact).norm())
        for bits in (1, 2, 3, 4)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] / 3


def test_groups_of_one_key_are_the_keys(recall, layers):
    for layer in layers:
        exact = recall.exact(layer)
        torch.testing.assert_close(recall.means(1)(layer), exact)
        torch.testing.assert_close(recall.bounds(1)(layer), exact, rtol=1e-4, atol=1e-4)
        groups = exact.unflatten(3, (-1, 16))
        assert bool((recall.bounds(16)(layer) >= groups.amax(4) - 1e-3).all())


def test_the_ends_are_not_chosen(recall):
    scores = torch.tensor([9.0, 1, 3, 3, 2, 8, 7])
    assert recall.best(scores).tolist() == [2, 3]


def test_the_end_of_a_text_goes_back_to_its_needle(recall):
    registry = Registry.discover(load_settings(), reserved_commands=BUILT_IN.keys())
    tokenizer, _, _ = open_text(registry.bundled_model(), load_settings(), registry)
    cases = list(recall.texts(tokenizer, 16000, [0.1, 0.5, 0.9], 2, 0))
    assert [case.kind for case in cases] == ["ids"] * 6 + ["function"] * 6 + ["constant"] * 6
    assert {case.chunk for case in cases} == {7, 31, 54}
    for case in cases:
        whole, end = recall.CHUNKS * 64, case.tokens[recall.CHUNKS * 64 :]
        assert 8 <= len(end) < 64
        assert 6 <= len(case.answer) <= 14
        chunk = case.tokens[64 * case.chunk : 64 * (case.chunk + 1)]
        (place,) = (at for at in range(64) if chunk[at : at + len(end)] == end)
        behind = place + len(end)
        assert chunk[behind : behind + len(case.answer)] == case.answer
        others = case.tokens[: 64 * case.chunk] + case.tokens[64 * (case.chunk + 1) : whole]
        text = " ".join(map(str, others))
        assert " ".join(map(str, end)) not in text
