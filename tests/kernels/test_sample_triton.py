"""The kernels that sample, against the reference: token by token."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from kinfolk_kernels.sample import triton_backend as kernel
from kinfolk_kernels.sample.noise import ERROR, noise, noise_words, rough_noise
from kinfolk_kernels.sample.op import SampleArguments, argmax, sample
from kinfolk_kernels.sample.philox import gumbel

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


@pytest.mark.parametrize("vocabulary", [2, 513, 1027])
def test_many_seeds_and_positions(vocabulary):
    """Flat rows and peaked ones; what is drawn is rarely the most probable token."""
    rng = np.random.default_rng(vocabulary)
    spread = rng.choice([0, 0.5, 2, 6], (64, 1))
    logits = torch.tensor(rng.normal(0, 1, (64, vocabulary)) * spread).float()
    assert_same(logits, every_kind(rng, 64, vocabulary), 512)
    assert_same(logits[:16], plain(16, seed=vocabulary, temperature=1.3), 512)


def test_a_token_in_the_last_tile_is_drawn_if_its_noise_is_the_largest():
    logits = torch.zeros(40, 1030)
    tokens, _ = drawn(logits, plain(40), 512)
    rows = plain(40)
    expected = gumbel(rows.seed[:, None], rows.position[:, None], torch.arange(1030)).argmax(1)
    assert torch.equal(tokens, expected)
    assert len(set((tokens // 512).tolist())) > 1


def test_large_logits_do_not_hide_noise():
    """Ties at 1e7, where float32 has steps of 1: the noise alone decides, and its 53 bits count."""
    logits = torch.full((30, 5), 1e7)
    rows = plain(30)
    tokens, _ = drawn(logits, rows, 512)
    assert torch.equal(tokens, drawn(logits - 1e7, rows, 512)[0])
    assert len(tokens.unique()) > 2
    assert_same(logits, rows, 512)


@triton.jit
def noise_kernel(seed_ptr, position_ptr, exact_ptr, rough_ptr, PAIRS: tl.constexpr):
    pair = tl.arange(0, PAIRS)
    a, b, c, d = noise_words(tl.load(seed_ptr), tl.load(position_ptr), pair)
    tl.store(exact_ptr + 2 * pair, noise(a, b))
    tl.store(exact_ptr + 2 * pair + 1, noise(c, d))
    tl.store(rough_ptr + 2 * pair, rough_noise(a, b))
    tl.store(rough_ptr + 2 * pair + 1, rough_noise(c, d))


@triton.jit
def words_kernel(high_ptr, low_ptr, exact_ptr, rough_ptr, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    high = tl.load(high_ptr + at).to(tl.uint32)
    low = tl.load(low_ptr + at).to(tl.uint32)
    tl.store(exact_ptr + at, noise(high, low))
    tl.store(rough_ptr + at, rough_noise(high, low))


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (-1, 2**40 + 5), (2**62 + 3, -9)])
def test_noise_of_kernels_is_that_of_the_reference(seed, position):
    exact, rough = torch.empty(8192, dtype=torch.float64), torch.empty(8192)
    given = torch.tensor([seed]), torch.tensor([position])
    noise_kernel[(1,)](*given, exact, rough, 4096)
    expected = gumbel(*given, torch.arange(8192))
    assert (exact - expected).abs().max() < 1e-13
    assert (rough - expected).abs().max() < ERROR.value / 10


def test_extreme_words_have_noise_within_its_error():
    edges = [0, 2**31, 2**32 - 1]
    edges += [1 << i for i in range(31)] + [2**32 - 1 - (1 << i) for i in range(30)]
    lows = [0, 1 << 11, 5 << 11, 2**31, 2**32 - 2**11, 2**32 - 1, 2047, 2**20]
    high, low = torch.cartesian_prod(torch.tensor(edges), torch.tensor(lows)).T.contiguous()
    exact, rough = torch.empty(512, dtype=torch.float64), torch.empty(512)
    words_kernel[(1,)](high, low, exact, rough, 512)
    u = ((high << 21) | (low >> 11)).double().clamp_min(0.5) * 2.0**-53
    expected = -(-u.log()).log()
    assert (exact - expected).abs().max() < 1e-13
    assert (rough - expected).abs().max() < ERROR.value / 10


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
