"""The kernel that chooses experts, against the reference."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.route import triton_backend as kernel
from kinfolk_kernels.route.op import RouteArguments, choice, route

pytestmark = pytest.mark.interpreter

WEIGHT = 2e-6
"""Relative: one exponential, two sums and two quotients in float32."""

SCORES = pytest.mark.parametrize("score", ["softmax", "sigmoid"])


def arguments(weight, score, top_k, bias=None, scale=1.0, expert_scale=None):
    return RouteArguments(weight, score, top_k, torch.float32, bias, scale, expert_scale)


def chosen(logits, *rest):
    """The kernel's outputs, written over invalid expert ids and NaN weights."""
    given = arguments(None, *rest)
    ids = torch.full((logits.shape[-2], given.top_k), -12345)
    weights = torch.full((logits.shape[-2], given.top_k), torch.nan)
    kernel.choose(given, logits, ids, weights).run()
    return ids, weights


@SCORES
@pytest.mark.parametrize(("experts", "top_k"), [(1, 1), (12, 2), (65, 7), (128, 8), (256, 8)])
@pytest.mark.parametrize("extras", [False, True])
def test_equals_the_reference(numbers, score, experts, top_k, extras):
    logits = numbers(5, experts)
    bias = 0.3 * numbers(experts) if extras else None
    expert_scale = 0.5 + torch.rand(experts) if extras else None
    scale = 2.5 if extras else 1.0
    ids, weights = chosen(logits, score, top_k, bias, scale, expert_scale)
    given = arguments(None, score, top_k, bias, scale, expert_scale)
    expected_ids, expected = choice(given, logits)
    # Scores of huge logits are all 0 or 1 and equal: they come in the order of their ids too.
    assert torch.equal(ids, expected_ids)
    torch.testing.assert_close(weights, expected, rtol=WEIGHT, atol=1e-30)


@SCORES
@pytest.mark.parametrize("experts", [5, 200, 256])
def test_of_equal_logits_the_lowest_ids_are_chosen(score, experts):
    generator = torch.Generator().manual_seed(experts)
    logits = torch.randint(0, 3, (20, experts), generator=generator).float()
    for bias in (None, torch.randint(0, 2, (experts,), generator=generator).float()):
        ids, _ = chosen(logits, score, 4, bias)
        assert torch.equal(ids, choice(arguments(None, score, 4, bias), logits)[0])


def test_rows_of_a_wider_tensor_are_read_in_place(numbers):
    wide = numbers(4, 300)
    logits = wide[:, 17:145]
    ids, weights = chosen(logits, "softmax", 8)
    again, same = chosen(logits.contiguous(), "softmax", 8)
    assert torch.equal(ids, again)
    assert torch.equal(weights, same)


@SCORES
def test_ids_are_those_of_experts_whatever_the_logits_are(score):
    logits = torch.tensor(
        [[torch.nan] * 9, [torch.inf] * 9, [-torch.inf] * 9, [1e4, -1e4] * 4 + [0]]
    )
    ids, weights = chosen(logits, score, 4)
    assert all(len(set(row)) == 4 and min(row) >= 0 and max(row) < 9 for row in ids.tolist())
    assert weights[3].isfinite().all()


# -- products and choice ---------------------------------------------------------------------------


@SCORES
@pytest.mark.parametrize("rows", [1, 3, 32, 33])
@pytest.mark.parametrize(("experts", "width"), [(12, 96), (65, 128), (1, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_equals_the_reference_for_one_row_few_and_many(numbers, score, rows, experts, width, dtype):
    x, weight = numbers(rows, width).to(dtype), numbers(experts, width) / width
    bias = 0.3 * numbers(experts) if score == "sigmoid" else None
    scales = None if score == "sigmoid" else 0.5 + torch.rand(experts)
    given = arguments(weight, score, min(5, experts), bias, 2.5, scales)
    ids, weights = kernel.route(given, x)
    wanted, shares = route(given, x)
    assert torch.equal(ids, wanted)
    torch.testing.assert_close(weights, shares, rtol=1e-4, atol=1e-20)


@SCORES
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("bias", [None, torch.tensor([0.0, 3, 0, 0, 2, 0, 0, 0, 0])])
def test_a_row_without_numbers_gives_none(score, rows, bias):
    x = torch.full((rows, 32), torch.nan)
    given = arguments(torch.ones(9, 32), score, 4, bias)
    ids, weights = kernel.route(given, x)
    assert ids.tolist() == [[0, 1, 2, 3]] * rows
    assert weights.isnan().all()


@pytest.mark.parametrize(("experts", "width"), [(70, 300), (5, 72)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_many_rows_meet_the_matrix_unit(numbers, experts, width, dtype):
    x, weight = numbers(70, width).to(dtype), numbers(experts, width) / width
    logits = kernel.empty_parts(70, width, experts, x.device).fill_(torch.nan)
    assert logits.shape == (-(-width // 256), 70, experts)
    kernel.logits_of_many(x, weight, logits).run()
    exact = x.double() @ weight.double().T
    assert float((logits.sum(0) - exact).abs().max()) <= 1e-6 * float(exact.abs().max())
    ids, weights = kernel.route(arguments(weight, "softmax", 3), x)
    wanted, shares = route(arguments(weight, "softmax", 3), x)
    assert torch.equal(ids, wanted)
    torch.testing.assert_close(weights, shares, rtol=1e-4, atol=0)


def test_the_choice_adds_parts_up_in_their_order(numbers):
    """The last part takes the others away, but for what float32 lost when it added them."""
    parts = torch.stack([numbers(6, 20) * 2.0**20, numbers(6, 20), numbers(6, 20)])
    parts = torch.cat([parts, -(parts[0] + parts[1] + parts[2])[None], 0.1 * numbers(1, 6, 20)])
    total = parts[0] + parts[1] + parts[2] + parts[3] + parts[4]
    assert not torch.equal(total, parts[4] + parts[3] + parts[2] + parts[1] + parts[0])
    ids, weights = chosen(parts, "softmax", 5)
    expected, same = chosen(total, "softmax", 5)
    assert torch.equal(ids, expected)
    assert torch.equal(weights, same)


def test_from_33_rows_on_a_row_is_chosen_alike_in_every_step(numbers):
    x, weight = numbers(67, 300).half(), numbers(33, 300) / 300
    given = arguments(weight, "softmax", 4)
    ids, weights = kernel.route(given, x)
    # Some processors' matrix products, which the interpreter calls, depend on a row's place in
    # the tile: the rows keep theirs here. On a GPU they move, see tests/gpu/test_experts_triton.py.
    some, same = kernel.route(given, x[:40])
    assert torch.equal(some, ids[:40])
    assert torch.equal(same, weights[:40])


def test_rows_may_lie_in_a_wider_tensor(numbers):
    wide, weight = numbers(3, 200), numbers(9, 128) / 128
    ids, weights = kernel.route(arguments(weight, "softmax", 3), wide[:, 40:168])
    again, same = kernel.route(arguments(weight, "softmax", 3), wide[:, 40:168].contiguous())
    assert torch.equal(ids, again)
    assert torch.equal(weights, same)


def test_strided_rows_are_read_like_contiguous_ones(numbers):
    wide, weight = numbers(3, 256), numbers(9, 128) / 128
    given = arguments(weight, "softmax", 3)
    ids, weights = kernel.route(given, wide[:, ::2])
    again, same = kernel.route(given, wide[:, ::2].contiguous())
    assert torch.equal(ids, again)
    assert torch.equal(weights, same)


def test_a_row_does_not_see_the_others(numbers):
    x, weight = numbers(16, 64), numbers(20, 64) / 64
    ids, weights = kernel.route(arguments(weight, "softmax", 4), x)
    others = numbers(16, 64)
    others[5] = x[11]
    moved, same = kernel.route(arguments(weight, "softmax", 4), others)
    assert torch.equal(moved[5], ids[11])
    assert torch.equal(same[5], weights[11])


def test_the_op_makes_its_outputs_and_says_what_it_cannot(numbers):
    x, weight = numbers(3, 64), numbers(12, 64)

    def reason(dtype=torch.float32, weight=weight, bias=None):
        return kernel.supports(RouteArguments(weight, "softmax", 2, dtype, bias)).reason

    assert reason() == ""
    ids, weights = kernel.route(arguments(weight, "softmax", 2), x)
    assert (ids.dtype, weights.dtype) == (torch.int64, torch.float32)
    assert "float16" in reason(weight=weight.half())
    assert "bias" in reason(bias=torch.zeros(12).half())
    assert "float64" in reason(torch.float64)
    assert "bfloat16" in reason(torch.bfloat16)
    assert "1025 experts" in reason(weight=torch.zeros(1025, 64))
