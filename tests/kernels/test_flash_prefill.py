"""Sparse attention of prompts, against its definition in float64 and against dense attention."""

from __future__ import annotations

import pytest
import torch
from sparse_inputs import SparseCase, dense_attention, sparse_case

from kinfolk_kernels.flash_prefill import op
from kinfolk_kernels.flash_prefill.op import (
    ALPHA,
    DENSE_BLOCKS,
    FIRST_BLOCKS,
    NEAR_BLOCKS,
    FlashPrefillArguments,
    block_means,
    flash_prefill,
    kept_blocks,
)
from kinfolk_kernels.stored_kind import StoredKind

CPU = torch.device("cpu")
F32 = 1e-5
"""Of a weighted mean of normal numbers in float32."""


def arguments_of(case, scale):
    keys, values = (StoredKind.of(pool) for pool in case.pools)
    return FlashPrefillArguments(case.q.shape[1], keys, values, scale, case.q.dtype, CPU)


def run(case, scale=0.125, start=0, stop=None, length=None):
    length = len(case.q) if length is None else length
    stop = length if stop is None else stop
    used = case.blocks[: -(-stop // 64)]
    arguments = arguments_of(case, scale)
    return flash_prefill(arguments, case.q[start:stop], case.pools, used, start, length)


def published_choice(case, scale, alpha=ALPHA):
    """Steps 1 to 4 as published: sums of powers of two below the largest product of a block,
    normalised over the blocks, divided by their sum."""
    length, heads = case.q.shape[:2]
    group = heads // case.k.shape[1]
    count = -(-length // 128)
    choice = torch.zeros(heads, count, count, dtype=torch.bool)
    means = [case.k[n * 128 : (n + 1) * 128].double().mean(0) for n in range(count)]
    for head in range(heads):
        for m in range(count):
            rows = range(m * 128, min((m + 1) * 128, length))
            raw, top = [], []
            for n in range(m + 1):
                last = min((n + 1) * 128, length) - 1
                x = [
                    float(case.q[j, head].double() @ means[n][head // group]) * scale * 1.4426950409
                    for j in rows
                    if j >= last
                ]
                top.append(max(x, default=-1e30))
                raw.append(sum(2 ** (value - top[-1]) for value in x))
            score = [r * 2 ** (t - max(top)) for r, t in zip(raw, top, strict=True)]
            total = sum(score)
            for n in range(m + 1):
                near = n < FIRST_BLOCKS or m - n < NEAR_BLOCKS or m >= count - DENSE_BLOCKS
                share = score[n] / total
                choice[head, m, n] = near or share >= alpha * max(score) / total
    return choice


def as_mask(kept, count):
    mask = torch.zeros(len(kept[0]), len(kept), count, dtype=torch.bool)
    for m, of_block in enumerate(kept):
        for head, numbers in enumerate(of_block):
            mask[head, m, numbers] = True
    return mask


@pytest.mark.parametrize("length", [1536, 1500, 1409])
def test_blocks_are_chosen_by_normalised_scores(length):
    case = sparse_case(length, heads=2, kv_heads=1, seed=length)
    count = -(-length // 128)
    kept = kept_blocks(case.q, block_means(case.k), 0, length, 0.125)
    expected = published_choice(case, 0.125)
    assert torch.equal(as_mask(kept, count), expected)
    left_out = ~expected & torch.ones(count, count, dtype=torch.bool).tril()
    assert left_out.any(), "a choice that leaves nothing out shows nothing"


@pytest.mark.parametrize("length", [1, 128, 200, 1409])
def test_attention_is_that_to_the_kept_blocks_and_to_nothing_behind_a_row(length):
    case = sparse_case(length, heads=2, kv_heads=1)
    choice = published_choice(case, 0.125)
    of_rows = choice.repeat_interleave(128, 1).repeat_interleave(128, 2)[:, :length, :length]
    visible = of_rows & torch.ones(length, length, dtype=torch.bool).tril()
    expected = dense_attention(case, 0.125, visible)
    assert torch.allclose(run(case).double(), expected, rtol=F32, atol=F32)


def test_with_a_bar_of_nothing_it_is_dense_attention(monkeypatch):
    monkeypatch.setattr(op, "ALPHA", 1e-300)
    case = sparse_case(1100, heads=2, kv_heads=2)
    visible = torch.ones(2, 1100, 1100, dtype=torch.bool).tril()
    expected = dense_attention(case, 0.125, visible)
    assert torch.allclose(run(case).double(), expected, rtol=F32, atol=F32)


def test_a_block_that_one_row_looks_for_outweighs_blocks_that_all_rows_ignore_alike():
    """Without the normalisation a flat row profile would win: it adds up to 128, a peak to 1."""
    length, dim = 128 * 12, 16
    k = torch.zeros(length, 1, dim)
    for n in range(12):
        k[n * 128 : (n + 1) * 128, 0, n] = 10.0
    q = torch.zeros(length, 1, dim)
    q[9 * 128 + 5, 0, 3] = 20.0
    case = SparseCase.paged(q, k, torch.randn(length, 1, dim))
    kept = kept_blocks(q, block_means(k), 0, length, 0.125)
    assert kept[9][0] == [0, 1, 3, 6, 7, 8, 9]
    negative = kept_blocks(q - 1, block_means(k), 0, length, 0.125)
    assert 3 in negative[9][0], "products below zero are compared as others are"
    assert run(case).isfinite().all()


def test_first_near_and_last_blocks_are_always_kept():
    count = 14
    case = sparse_case(128 * count, heads=1, kv_heads=1, spread=8.0)
    kept = kept_blocks(case.q, block_means(case.k), 0, 128 * count, 1.0)
    for m in range(count):
        near = set(range(max(0, m - NEAR_BLOCKS + 1), m + 1))
        assert set(range(min(FIRST_BLOCKS, m + 1))) | near <= set(kept[m][0])
        assert kept[m][0] == sorted(kept[m][0])
        assert max(kept[m][0]) == m
        if m >= count - DENSE_BLOCKS:
            assert kept[m][0] == list(range(m + 1))
    assert any(len(kept[m][0]) < m + 1 for m in range(count))


def test_no_row_sees_a_key_behind_it():
    case = sparse_case(700, heads=2, kv_heads=1, spread=0.1)
    before = run(case)
    k, v = case.k.clone(), case.v.clone()
    k[650:] *= 2
    v[650:] += 5
    after = run(SparseCase.paged(case.q, k, v))
    # The block in which keys changed has another mean, but its rows see all blocks.
    assert torch.allclose(before[:650], after[:650], rtol=F32, atol=F32)
    assert not torch.allclose(before[650:], after[650:], rtol=F32, atol=F32)


@pytest.mark.parametrize("cut", [512, 1024])
def test_a_text_in_slices_gives_what_it_gives_at_once(cut):
    case = sparse_case(1200, heads=2, kv_heads=1)
    whole = run(case)
    first, second = run(case, stop=cut, length=1200), run(case, start=cut)
    assert torch.equal(torch.cat([first, second]), whole)
    tail = run(case, start=1192)
    assert torch.allclose(tail, whole[1192:], rtol=F32, atol=F32)
