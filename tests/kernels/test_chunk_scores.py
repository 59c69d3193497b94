"""Scores of chunks against attention in float64."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.chunk_digest.op import ChunkDigestArguments, KeyDigest, chunk_digest, restored
from kinfolk_kernels.chunk_scores.op import UNSCORED, ChunkScoresArguments, chunk_scores
from kinfolk_kernels.codecs import rotate
from kinfolk_kernels.stored_kind import StoredKind

CPU = torch.device("cpu")
F32 = 1e-5
"""Float32 sums of some hundred exponentials of products."""


def arguments_of(heads=4, kv_heads=2, dim=64, rotated=True):
    return ChunkScoresArguments(heads, kv_heads, dim, dim**-0.5, rotated, torch.float32, CPU)


def case(rows=3, layers=2, heads=4, kv_heads=2, dim=64, places=9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    digest = KeyDigest.empty((places, layers, kv_heads), dim, CPU)
    digest.codes.random_(0, 256, generator=generator)
    digest.scales.copy_(torch.rand(digest.scales.shape, generator=generator))
    return 2 * torch.randn(rows, layers, heads, dim, generator=generator), digest


def expected_scores(arguments, queries, digest, places):
    """One softmax at a time."""
    keys, best = restored(digest).double(), torch.zeros(len(places), dtype=torch.float64)
    group = arguments.heads // arguments.kv_heads
    for row in queries.double():
        for layer, of_layer in enumerate(row):
            for head, query in enumerate(of_layer):
                products = keys[places.long(), layer, head // group] @ query * arguments.scale
                shares = products.flatten().softmax(0).view(-1, 64).sum(1)
                best = torch.maximum(best, shares)
    return best


@pytest.mark.parametrize(
    ("rows", "layers", "heads", "kv_heads"),
    [(1, 1, 1, 1), (3, 2, 4, 2), (8, 1, 6, 1), (2, 3, 4, 4)],
)
def test_a_score_is_the_largest_share_of_attention(rows, layers, heads, kv_heads):
    queries, digest = case(rows, layers, heads, kv_heads)
    places = torch.tensor([4, 0, 8, 3, 1], dtype=torch.int32)
    arguments = arguments_of(heads, kv_heads)
    found = chunk_scores(arguments, queries, digest, places)
    expected = expected_scores(arguments, queries, digest, places)
    assert torch.allclose(found.double(), expected, rtol=F32, atol=0)
    assert found.dtype == torch.float32


def test_shares_of_one_query_add_up_to_one():
    queries, digest = case(1, 1, 1, 1)
    found = chunk_scores(arguments_of(1, 1), queries, digest, torch.arange(9).int())
    assert float(found.double().sum()) == pytest.approx(1, abs=F32)


def test_chunks_without_a_digest_are_below_all_others_and_get_no_attention():
    queries, digest = case()
    some = torch.tensor([2, -1, 5, -1], dtype=torch.int32)
    found = chunk_scores(arguments_of(), queries, digest, some)
    assert found[[1, 3]].tolist() == [UNSCORED] * 2
    assert torch.equal(found[[0, 2]], chunk_scores(arguments_of(), queries, digest, some[[0, 2]]))
    assert float(found[[0, 2]].min()) > UNSCORED
    none = torch.full((3,), -1, dtype=torch.int32)
    assert chunk_scores(arguments_of(), queries, digest, none).tolist() == [UNSCORED] * 3
    assert chunk_scores(arguments_of(), queries, digest, none[:0]).shape == (0,)


def test_queries_are_rotated_unless_they_are_already():
    queries, digest = case()
    places = torch.arange(9).int()
    plain = chunk_scores(arguments_of(rotated=False), queries, digest, places)
    turned = chunk_scores(arguments_of(rotated=True), rotate(queries), digest, places)
    assert torch.allclose(plain, turned, rtol=F32, atol=0)
    assert not torch.allclose(plain, chunk_scores(arguments_of(), queries, digest, places))


@pytest.mark.parametrize("seed", range(5))
def test_digests_find_the_chunk_that_exact_keys_find(seed):
    """A query that looks for one key among 40 chunks, whose keys have a large mean in common."""
    generator = torch.Generator().manual_seed(seed)
    chunks, heads, dim = 40, 2, 128
    mean = 4 * torch.randn(heads, 1, dim, generator=generator)
    keys = mean + torch.randn(chunks, heads, 64, dim, generator=generator)
    target = 5 + seed
    queries = torch.randn(4, 1, heads, dim, generator=generator)
    queries[2, 0, 1] = 1.5 * (keys[target, 1, 33] - mean[1, 0])
    digest = KeyDigest.empty((chunks, 1, heads), dim, CPU)
    index = torch.arange(chunks).int()
    kind = StoredKind.of(keys)
    chunk_digest(ChunkDigestArguments(kind, CPU), keys, index, 0 * index, index, digest.layer(0))
    found = chunk_scores(arguments_of(heads, heads, dim, rotated=False), queries, digest, index)
    assert int(found.argmax()) == target
    # The heads see the keys themselves: what centring takes away is the same for all of them.
    products = torch.einsum("rhd,chnd->rhcn", queries[:, 0], keys) * dim**-0.5
    shares = products.flatten(2).softmax(-1).view(products.shape).sum(-1).flatten(0, 1).amax(0)
    assert int(shares.argmax()) == target
    assert float(found[target]) == pytest.approx(float(shares[target]), abs=0.3)


def test_heads_that_do_not_share_keys_evenly_are_refused():
    with pytest.raises(ValueError, match="6 query heads do not share 4 key heads evenly"):
        arguments_of(6, 4)
    with pytest.raises(ValueError, match="keys of 30 dimensions"):
        arguments_of(dim=30)
