"""The kernels that score chunks, against the reference."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.chunk_digest.op import KeyDigest
from kinfolk_kernels.chunk_scores import triton_backend as kernel
from kinfolk_kernels.chunk_scores.op import ChunkScoresArguments, chunk_scores

CPU = torch.device("cpu")

F32, F16 = 5e-6, 2e-3
"""Of a share. Float16: a query that the kernel has rotated is rounded, which moves products of one
by some 5e-4; 2e-6 and 5e-4 were measured."""

pytestmark = pytest.mark.interpreter


def arguments_of(heads, kv_heads, dim, rotated, dtype=torch.float32):
    return ChunkScoresArguments(heads, kv_heads, dim, dim**-0.5, rotated, dtype, CPU)


@pytest.mark.parametrize(
    ("rows", "layers", "heads", "kv_heads", "dim", "chunks"),
    [(1, 1, 2, 2, 64, 1), (8, 2, 6, 1, 64, 9), (3, 1, 4, 2, 128, 21), (8, 1, 10, 1, 64, 5)],
)
@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_equals_the_reference(
    scored_chunks, rows, layers, heads, kv_heads, dim, chunks, rotated, dtype
):
    queries, digest, places = scored_chunks(rows, layers, heads, kv_heads, dim, chunks)
    queries = queries.to(dtype)
    arguments = arguments_of(heads, kv_heads, dim, rotated, dtype)
    assert kernel.supports(arguments)
    expected = chunk_scores(arguments, queries, digest, places)
    found = kernel.chunk_scores(arguments, queries, digest, places)
    bound = F32 if dtype == torch.float32 else F16
    assert torch.allclose(found, expected, rtol=bound, atol=bound / 100)
    assert torch.equal(found < 0, places < 0)


def test_many_chunks_are_added_up_in_several_tiles(scored_chunks):
    queries, digest, _ = scored_chunks(1, 1, 1, 1, 64, 12)
    places = torch.arange(300).int() % 10
    places[::7] = -1
    arguments = arguments_of(1, 1, 64, True)
    found = kernel.chunk_scores(arguments, queries, digest, places)
    assert torch.allclose(found, chunk_scores(arguments, queries, digest, places), rtol=F32, atol=0)
    assert float(found[places >= 0].sum()) == pytest.approx(1, abs=1e-4)


def test_without_any_digest_no_chunk_has_a_score(scored_chunks):
    queries, digest, places = scored_chunks(2, 1, 2, 1, 64, 5)
    arguments = arguments_of(2, 1, 64, True)
    assert kernel.chunk_scores(arguments, queries, digest, 0 * places - 1).tolist() == [-1] * 5
    assert kernel.chunk_scores(arguments, queries, digest, places[:0]).shape == (0,)


def test_where_a_digest_lies_and_garbage_beside_it_change_no_bit(scored_chunks):
    queries, digest, places = scored_chunks(2, 2, 4, 2, 64, 6)
    arguments = arguments_of(4, 2, 64, False)
    expected = kernel.chunk_scores(arguments, queries, digest, places)
    order = torch.randperm(len(digest.codes), generator=torch.Generator().manual_seed(3))
    scales = torch.full((2 * len(order), *digest.scales.shape[1:]), torch.nan).half()
    codes = torch.full((2 * len(order), *digest.codes.shape[1:]), 77, dtype=torch.uint8)
    scales[1 + 2 * order.argsort()], codes[1 + 2 * order.argsort()] = digest.scales, digest.codes
    moved = torch.where(places < 0, -1, 1 + 2 * order.argsort()[places.clamp_min(0).long()]).int()
    found = kernel.chunk_scores(arguments, queries, KeyDigest(codes, scales), moved)
    assert torch.equal(found, expected)


def test_strided_queries_give_the_same_bits(scored_chunks):
    queries, digest, places = scored_chunks(2, 2, 4, 2, 64, 6)
    wide = torch.full((2, 2, 4, 128), torch.nan)
    wide[..., 64:] = queries
    for rotated in (False, True):
        arguments = arguments_of(4, 2, 64, rotated)
        found = kernel.chunk_scores(arguments, wide[..., 64:], digest, places)
        assert torch.equal(found, kernel.chunk_scores(arguments, queries, digest, places))


def test_what_it_cannot_run_it_refuses():
    for dim, dtype, reason in [
        (32, torch.float32, "32 dimensions"),
        (128, torch.float64, "queries of torch.float64"),
        (128, torch.bfloat16, "interpreter"),
    ]:
        verdict = kernel.supports(arguments_of(2, 1, dim, True, dtype))
        assert not verdict
        assert reason in verdict.reason
