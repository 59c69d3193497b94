"""The kernels that sample, against the reference: token by token."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from kinfolk_kernels.sample import triton_backend as kernel
from kinfolk_kernels.sample.op import SampleArguments, argmax, sample

CPU = SampleArguments(torch.device("cpu"))

pytestmark = [pytest.mark.interpreter, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Rows:
    """Parameters of n rows."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    position: torch.Tensor
    greedy: bool = False
    largest_top_k: int = 0


def every_kind(rng, n, vocabulary):
    """A temperature of each row, 0 among them, and every filter or none."""
    number = {"dtype": torch.float32}
    return Rows(
        torch.tensor(rng.choice([0, 0.3, 0.7, 1, 2.5], n), **number),
        torch.tensor(rng.choice([0, 0, 1, 3, vocabulary // 2, vocabulary, 10 * vocabulary], n)),
        torch.tensor(np.where(rng.random(n) < 0.4, 1, rng.uniform(0.01, 1, n)), **number),
        torch.tensor(np.where(rng.random(n) < 0.5, 0, rng.uniform(0, 0.6, n)), **number),
        torch.tensor(rng.integers(-(2**63), 2**63 - 1, n)),
        torch.tensor(rng.integers(0, 5000, n)),
    )


def plain(n, **given):
    """Rows that differ in their positions alone."""
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 7, **given}
    columns = {name: torch.full((n,), value) for name, value in values.items()}
    return Rows(**columns, position=torch.arange(n))


def drawn(logits, rows, tile=64):
    """The kernels' outputs; scratch and outputs hold nonsense before."""
    scratch = kernel.Scratch.make(logits, tile, draws=not rows.greedy)
    for name in ("best", "best_id", "finite", "mass", "count", "codes", "listed"):
        getattr(scratch, name).fill_(-12345)
    tokens = torch.full((logits.shape[0],), -12345)
    finite = torch.full((logits.shape[0],), fill_value=True)
    for launch in kernel.launches(logits, rows, scratch, tokens, finite):
        launch.run()
    return tokens, finite


def assert_same(logits, rows, tile):
    tokens, finite = drawn(logits, rows, tile)
    expected, sound = sample(CPU, logits, rows)
    assert torch.equal(tokens, expected)
    assert torch.equal(finite, sound)


@pytest.mark.parametrize(("vocabulary", "tile"), [(1, 512), (40, 512), (601, 512), (4099, 2048)])
def test_greedy_rows_take_the_largest(numbers, vocabulary, tile):
    logits = numbers(5, vocabulary)
    logits[1] = logits[1].round()
    rows = replace(plain(5, temperature=0.0), greedy=True)
    assert_same(logits, rows, tile)
    assert_same(logits, plain(5, temperature=0.0), tile)


@pytest.mark.parametrize("grain", [0.5, 0.01, 0], ids=["ties", "few ties", "none"])
@pytest.mark.parametrize(("vocabulary", "n"), [(1, 2), (40, 10), (1500, 4)])
def test_every_kind_of_row_beside_others(vocabulary, n, grain):
    rng = np.random.default_rng(vocabulary)
    logits = rng.normal(0, 3, (n, vocabulary))
    logits = torch.tensor(np.round(logits / grain) * grain if grain else logits).float()
    assert_same(logits, every_kind(rng, n, vocabulary), 512)


def test_tiles_change_nothing():
    rng = np.random.default_rng(3)
    logits = torch.tensor(rng.normal(0, 2, (4, 1100))).float()
    rows = every_kind(rng, 4, 1100)
    one, other = drawn(logits, rows, 512), drawn(logits, rows, 2048)
    assert torch.equal(one[0], other[0])


def test_a_list_of_more_equal_candidates_than_are_looked_at_together():
    assert_same(torch.zeros(2, 2500), plain(2, top_k=1700, top_p=0.7002), 512)


def test_rows_of_a_wider_tensor_are_read_in_place(numbers):
    wide = numbers(3, 300)
    rows = plain(3, top_p=0.8)
    assert_same(wide[:, 17:145], rows, 512)


@pytest.mark.parametrize("temperature", [1e-30, 1e-12, 1e-5])
def test_a_tiny_temperature_is_greedy(temperature):
    logits = torch.tensor([[5.0, 90, -3e4, 89.5]] * 2)
    tokens, _ = drawn(logits, plain(2, temperature=temperature), 512)
    assert tokens.tolist() == [1, 1]


def test_a_banned_token_is_never_drawn():
    logits = torch.zeros(8, 4)
    logits[:, 2] = -torch.inf
    rows = plain(8, temperature=5.0, top_p=0.99)
    tokens, finite = drawn(logits, rows, 512)
    assert torch.equal(tokens, sample(CPU, logits, rows)[0])
    assert 2 not in tokens.tolist()
    assert not finite.any()


def test_rows_that_are_not_finite_spoil_no_other_and_get_some_token(numbers):
    logits = numbers(5, 300)
    rows = plain(5, top_p=0.9)
    expected, _ = drawn(logits, rows, 512)
    logits[1] = torch.nan
    logits[2, 17], logits[3, 299] = torch.inf, -torch.inf
    for each in (rows, replace(rows, greedy=True)):
        tokens, finite = drawn(logits, each, 512)
        assert finite.tolist() == [True, False, False, False, True]
        assert ((tokens >= 0) & (tokens < 300)).all()
        wanted = argmax(logits) if each.greedy else expected
        assert tokens[[0, 4]].tolist() == wanted[[0, 4]].tolist()


def test_the_op_makes_its_outputs(numbers):
    logits, rows = numbers(2, 90), plain(2)
    assert kernel.supports(CPU)
    tokens, finite = kernel.sample(CPU, logits, rows)
    assert (tokens.dtype, finite.dtype) == (torch.int64, torch.bool)
    assert torch.equal(tokens, sample(CPU, logits, rows)[0])
