"""Digests and scores of chunks and the ring of queries on the GPU, against the references."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.chunk_digest import triton_backend as digest_kernel
from kinfolk_kernels.chunk_digest.op import ChunkDigestArguments, KeyDigest, chunk_digest
from kinfolk_kernels.chunk_scores import triton_backend as score_kernel
from kinfolk_kernels.chunk_scores.op import ChunkScoresArguments, chunk_scores
from kinfolk_kernels.codecs import Coded
from kinfolk_kernels.stored_kind import StoredKind
from kinfolk_kernels.write_queries import triton_backend as ring_kernel
from kinfolk_kernels.write_queries.op import RING_ROWS, WriteQueriesArguments, write_queries

CPU, GPU = torch.device("cpu"), torch.device("cuda")

BOUND = {torch.float32: 5e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}
"""Of a share. A query that the kernel has rotated is rounded; in the interpreter that changes a
share by up to 5e-4 in float16, and bfloat16 has three bits less."""

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


def moved(keys):
    """Keys on the GPU, as views in the middle of larger blocks, as they are here."""
    planes = (keys.codes, keys.scales) if isinstance(keys, Coded) else (keys,)
    on_device = []
    for plane in planes:
        whole = torch.as_strided(plane, (len(plane), plane.stride(0)), (plane.stride(0), 1), 0)
        offset = plane.storage_offset()
        copy = whole.cuda()
        on_device.append(copy[:, offset : offset + plane[0].numel()].view(plane.shape))
    if isinstance(keys, Coded):
        return Coded(keys.format, *on_device, rotated=keys.rotated)
    return on_device[0]


@pytest.mark.parametrize("dim", [64, 128, 256, 512])
@pytest.mark.parametrize("storage", ["f32", "f16", "bf16", "q8_0", "q4_0"])
@pytest.mark.parametrize("rotated", [False, True])
def test_digests_equal_those_of_the_reference(
    stored_keys, assert_same_digest, storage, dim, rotated
):
    keys = stored_keys(storage, dim, rotated)
    blocks = torch.tensor([2, 5, 1, 4], dtype=torch.int32)
    firsts = torch.tensor([0, 3, 0, 0], dtype=torch.int32)
    places = torch.tensor([4, 0, -1, 2], dtype=torch.int32)
    expected, found = KeyDigest.empty((5, 3, 2), dim, CPU), KeyDigest.empty((5, 3, 2), dim, GPU)
    for digest in (expected, found):
        digest.codes.fill_(85)
        digest.scales.fill_(-1)
    kind = StoredKind.of(keys)
    on_gpu = [index.cuda() for index in (blocks, firsts, places)]
    arguments = ChunkDigestArguments(kind, GPU)
    assert digest_kernel.supports(arguments)
    digest_kernel.chunk_digest(arguments, moved(keys), *on_gpu, found.layer(1))
    chunk_digest(ChunkDigestArguments(kind, CPU), keys, blocks, firsts, places, expected.layer(1))
    assert_same_digest(KeyDigest(found.codes.cpu(), found.scales.cpu()), expected)


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize(
    ("rows", "layers", "heads", "kv_heads", "dim", "chunks"),
    [
        (1, 3, 24, 4, 256, 130),
        (8, 3, 24, 4, 256, 130),
        (8, 2, 16, 2, 512, 65),
        (5, 2, 48, 8, 128, 67),
        (8, 1, 32, 1, 64, 33),
        (8, 1, 8, 8, 64, 1),
    ],
)
def test_scores_equal_those_of_the_reference(
    scored_chunks, poisoned, rows, layers, heads, kv_heads, dim, chunks, rotated, dtype
):
    queries, digest, places = scored_chunks(rows, layers, heads, kv_heads, dim, chunks)
    queries = (2 * queries).to(dtype)
    scale = dim**-0.5
    on_cpu, on_gpu = (
        ChunkScoresArguments(heads, kv_heads, dim, scale, rotated, dtype, device)
        for device in (CPU, GPU)
    )
    expected = chunk_scores(on_cpu, queries, digest, places)
    moved_digest = KeyDigest(digest.codes.cuda(), digest.scales.cuda())
    operands = queries.cuda(), moved_digest, places.cuda()
    assert score_kernel.supports(on_gpu)
    with poisoned():
        found = score_kernel.chunk_scores(on_gpu, *operands)
        again = score_kernel.chunk_scores(on_gpu, *operands)
    assert torch.equal(found, again)
    bound = BOUND[dtype]
    assert torch.allclose(found.cpu(), expected, rtol=bound, atol=bound / 100)
    assert torch.equal(found.cpu() < 0, places < 0)


@pytest.mark.parametrize("dtype", BOUND)
@pytest.mark.parametrize(("heads", "dim"), [(1, 64), (24, 256), (16, 512), (48, 128), (3, 80)])
def test_the_ring_has_the_queries_of_the_reference(query_steps, heads, dim, dtype):
    arguments = WriteQueriesArguments(dtype, GPU)
    assert ring_kernel.supports(arguments)
    expected = torch.full((5, RING_ROWS, 3, heads, dim), -7.0, dtype=dtype)
    found = expected.cuda()
    for (queries, *rest), _ in query_steps(heads, heads, dim):
        queries = queries.to(dtype)
        write_queries(arguments, queries, *rest, expected[:, :, 1])
        moved_step = [part.cuda() for part in (queries, *rest)]
        ring_kernel.write_queries(arguments, *moved_step, found[:, :, 1])
    assert torch.equal(found.cpu(), expected)


def test_a_context_of_256k_is_scored_as_by_the_reference():
    """Codes of 4096 places and 33 layers have 2.2 GB, so offsets do not fit 32 bits."""
    generator = torch.Generator(GPU).manual_seed(0)
    digest = KeyDigest.empty((4096, 33, 4), 256, GPU)
    digest.codes.random_(0, 256, generator=generator)
    digest.scales.fill_(0.3)
    queries = torch.randn(8, 33, 24, 256, generator=generator, device=GPU).half()
    places = torch.randperm(4096, generator=generator, device=GPU).int()
    arguments = ChunkScoresArguments(24, 4, 256, 256**-0.5, True, torch.float16, GPU)
    found = score_kernel.chunk_scores(arguments, queries, digest, places)
    expected = torch.zeros(4096, device=GPU)
    for layer in range(33):
        part = slice(layer, layer + 1)
        one = KeyDigest(digest.codes[:, part], digest.scales[:, part])
        scores = chunk_scores(arguments, queries[:, part], one, places)
        expected = torch.maximum(expected, scores)
    assert torch.allclose(found, expected, rtol=2e-2, atol=1e-6)


def test_a_digest_and_scores_behind_it_are_captured_in_a_graph(stored_keys):
    """Only the kernels' own waits order the launches of a replay."""
    keys = moved(stored_keys("bf16", 256, False))
    index = torch.arange(1, 6, device=GPU).int()
    firsts, places = torch.zeros_like(index), index - 1
    digest = KeyDigest.empty((5, 1, 2), 256, GPU)
    queries = torch.randn(8, 1, 12, 256, device=GPU).bfloat16()
    compressing = ChunkDigestArguments(StoredKind.of(keys), GPU)
    scoring = ChunkScoresArguments(12, 2, 256, 0.06, False, torch.bfloat16, GPU)

    def step():
        digest_kernel.chunk_digest(compressing, keys, index, firsts, places, digest.layer(0))
        return score_kernel.chunk_scores(scoring, queries, digest, places)

    expected = step().clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for _ in range(20):
        digest.codes.zero_()
        digest.scales.zero_()
        found.zero_()
        graph.replay()
        assert torch.equal(found, expected)
