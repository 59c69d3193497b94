"""The kernel that compresses keys, against the reference."""

from __future__ import annotations

import pytest
import torch

from kinfolk_kernels.chunk_digest import triton_backend as kernel
from kinfolk_kernels.chunk_digest.op import ChunkDigestArguments, KeyDigest, chunk_digest
from kinfolk_kernels.stored_kind import StoredKind

CPU = torch.device("cpu")

pytestmark = pytest.mark.interpreter


@pytest.mark.parametrize(
    ("storage", "dim"),
    [("f32", 64), ("f32", 512), ("f16", 128), ("f16", 256), ("q8_0", 128), ("q4_0", 64)],
)
@pytest.mark.parametrize("rotated", [False, True])
def test_equals_the_reference(stored_keys, assert_same_digest, storage, dim, rotated):
    keys = stored_keys(storage, dim, rotated)
    blocks = torch.tensor([2, 5, 1, 4], dtype=torch.int32)
    firsts = torch.tensor([0, 3, 0, 0], dtype=torch.int32)
    places = torch.tensor([4, 0, -1, 2], dtype=torch.int32)
    arguments = ChunkDigestArguments(StoredKind.of(keys), CPU)
    assert kernel.supports(arguments)
    whole = [KeyDigest.empty((5, 3, 2), dim, CPU) for _ in range(2)]
    for digest, run in zip(whole, (chunk_digest, kernel.chunk_digest), strict=True):
        digest.codes.fill_(85)
        digest.scales.fill_(-1)
        run(arguments, keys, blocks, firsts, places, digest.layer(1))
    assert_same_digest(whole[1], whole[0])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_a_vector_that_is_not_finite_becomes_zero(stored_keys, bad):
    keys = stored_keys("f32", 64, False)
    keys[2, 1, 9, 3] = bad
    digest = KeyDigest.empty((1, 2), 64, CPU)
    places = torch.zeros(1, dtype=torch.int32)
    arguments = ChunkDigestArguments(StoredKind.of(keys), CPU)
    kernel.chunk_digest(arguments, keys, places + 2, places, places, digest)
    zero = digest.scales == 0
    assert zero.nonzero().tolist() == [[0, 1, 9]]
    assert bool(digest.scales.isfinite().all())


def test_scales_have_a_largest_number(stored_keys, assert_same_digest):
    keys = 1e6 * stored_keys("f32", 64, False)
    places = torch.zeros(1, dtype=torch.int32)
    arguments = ChunkDigestArguments(StoredKind.of(keys), CPU)
    found, expected = (KeyDigest.empty((1, 2), 64, CPU) for _ in range(2))
    kernel.chunk_digest(arguments, keys, places + 2, places, places, found)
    chunk_digest(arguments, keys, places + 2, places, places, expected)
    assert float(expected.scales.max()) == 65504
    assert_same_digest(found, expected)


def test_what_it_cannot_run_it_refuses():
    for kind, reason in [
        (StoredKind(2, 32, torch.float32), "32 dimensions"),
        (StoredKind(2, 96, torch.float16), "96 dimensions"),
        (StoredKind(2, 128, torch.float64), "keys or values of torch.float64"),
        (StoredKind(2, 128, None, "q3"), "stored as q3"),
        (StoredKind(2, 128, torch.bfloat16), "interpreter"),
    ]:
        verdict = kernel.supports(ChunkDigestArguments(kind, CPU))
        assert not verdict
        assert reason in verdict.reason
